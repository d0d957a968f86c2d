//! Listening, serving connections, and stopping without cutting anybody off.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agl_gateway::Gateway;
use agl_store::Store;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ServerOptions;
use crate::app::App;
use crate::handlers::readiness::Readiness;

/// Why the server can't listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another `host` or `port`, or stop what listens there")]
pub struct BindError {
    /// Where it should have listened.
    pub address: SocketAddr,
    /// What the system says.
    #[source]
    pub source: std::io::Error,
}

/// A server that listens. It answers once [`Server::serve`] runs; connections made before that wait.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
}

impl Server {
    /// Listens, with an empty store in memory.
    pub async fn bind(options: ServerOptions) -> Result<Self, BindError> {
        Self::bind_with_store(options, Store::in_memory()).await
    }

    /// Listens, with a store that the caller may use too.
    pub async fn bind_with_store(options: ServerOptions, store: Store) -> Result<Self, BindError> {
        let address = SocketAddr::new(options.host, options.port);
        let refused = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let gateway = Gateway::new(options.gateway.clone(), store.clone());
        let (readiness, shutdown) = (Readiness::default(), CancellationToken::new());
        Ok(Self { listener, address, app: Arc::new(App { options, store, gateway, readiness, shutdown }) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Where clients on this machine reach it.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        let ip = if ip.is_unspecified() { std::net::Ipv4Addr::LOCALHOST.into() } else { ip };
        format!("http://{}", SocketAddr::new(ip, self.address.port()))
    }

    /// Serves until `shutdown` is cancelled; then takes no more connections, answers long polls at once, and gives
    /// requests that are being served [`ServerOptions::shutdown_grace`] to end.
    pub async fn serve(self, shutdown: CancellationToken) {
        if self.app.options.key.is_empty() {
            tracing::warn!("no key is set: everybody who reaches this server may use it");
        }
        tracing::info!(address = %self.address, model_name = self.app.gateway.settings().model_name, "serving");
        let graceful = GracefulShutdown::new();
        // Dropped at the end, which cuts off whoever did not end in time.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection(stream, Arc::clone(&self.app), graceful.watcher()));
                    }
                    // Out of file descriptors, most likely: let some connections end first.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
        drop(self.listener);
        self.app.shutdown.cancel();
        let grace = self.app.options.shutdown_grace;
        if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
            tracing::warn!(?grace, "some requests did not end in time and are cut off");
        }
    }
}

/// Serves the requests of one connection, one after the other.
async fn connection(stream: TcpStream, app: Arc<App>, watcher: Watcher) {
    // Without it small answers may wait for the peer's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let head_timeout = app.options.head_timeout;
    let service = service_fn(move |request| {
        let app = Arc::clone(&app);
        async move { Ok::<_, Infallible>(app.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
