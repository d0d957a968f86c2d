//! From a request to its answer: find the route, check the key, read the body, call the handler.

use std::sync::Arc;

use agl_gateway::Gateway;
use agl_store::Store;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use crate::handlers::readiness::Readiness;
use crate::handlers::{docs, events, models, proxy, readiness, rollouts};
use crate::reply::{Refused, Reply, detail, empty, json, with_header};
use crate::routes::{Endpoint, Resolved, percent_decode, percent_encode, query_pairs, resolve};
use crate::{ServerOptions, auth, body};

/// Everything that handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) store: Store,
    pub(crate) gateway: Gateway,
    pub(crate) readiness: Readiness,
    /// Cancelled when shutdown begins: long polls then answer at once.
    pub(crate) shutdown: CancellationToken,
}

/// What a handler gets of a request.
pub(crate) struct Ask {
    /// The segments of the path that stood for something.
    pub(crate) segments: Vec<String>,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Ask {
    /// A segment of the path; every route has as many as its handler asks for.
    pub(crate) fn segment(&self, index: usize) -> &str {
        self.segments.get(index).map_or("", String::as_str)
    }
}

impl App {
    /// Answers a request. Dropping the future is how a caller that went away is noticed.
    pub(crate) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let (parts, incoming) = request.into_parts();
        let (endpoint, segments) = match resolve(parts.method.as_str(), &path_of(&parts.uri)) {
            Resolved::Serve(endpoint, segments) => (endpoint, segments),
            other => return not_served(other, &parts.method, &parts.uri, &parts.headers),
        };
        if !endpoint.is_public() && !auth::is_authorized(&parts.headers, &self.options.key) {
            return detail(StatusCode::UNAUTHORIZED, "Invalid or missing API key");
        }
        let body = match body::read(incoming, self.options.max_body_bytes).await {
            Ok(body) => body,
            Err(refused) => return refused.into_reply(),
        };
        let query = query_pairs(parts.uri.query().unwrap_or_default());
        let ask = Ask { segments, query, headers: parts.headers, body };
        self.serve(endpoint, ask).await.unwrap_or_else(Refused::into_reply)
    }

    async fn serve(&self, endpoint: Endpoint, ask: Ask) -> Result<Reply, Refused> {
        match endpoint {
            Endpoint::OpenApi => Ok(docs::openapi()),
            Endpoint::Docs | Endpoint::DocsRedirect | Endpoint::Redoc => Ok(docs::page()),
            Endpoint::Healthz => Ok(json(StatusCode::OK, r#"{"status":"ok"}"#)),
            Endpoint::CreateRollouts => rollouts::create(self, &ask),
            Endpoint::ListRollouts => rollouts::list(self, &ask).await,
            Endpoint::ListTerminal => rollouts::list_terminal(self, &ask).await,
            Endpoint::GetRollout => rollouts::get(self, &ask),
            Endpoint::PatchRollout => rollouts::patch(self, &ask),
            Endpoint::DeleteRollout => rollouts::delete(self, &ask),
            Endpoint::RolloutStatuses => rollouts::statuses(self, &ask),
            Endpoint::PostEvent => events::post(self, &ask),
            Endpoint::GetEvents => events::get(self, &ask),
            Endpoint::RegisterModels => models::register(self, &ask),
            Endpoint::DeleteModels => models::delete(self),
            Endpoint::CallModel => proxy::call(self, ask).await,
            Endpoint::ListModels => proxy::list_models(self, &ask),
            Endpoint::Pause => proxy::pause(self, &ask),
            Endpoint::Resume => Ok(proxy::resume(self)),
            Endpoint::ProxyState => Ok(proxy::state(self)),
            Endpoint::PublishReadiness => readiness::publish(self, &ask),
            Endpoint::GetReadiness => readiness::get(self),
        }
    }
}

/// The decoded path; of a request in absolute form (`GET http://host/path`) all of it, which fits no route.
fn path_of(uri: &Uri) -> String {
    if uri.scheme().is_some() { uri.to_string() } else { percent_decode(uri.path()) }
}

fn not_served(resolved: Resolved, method: &Method, uri: &Uri, headers: &HeaderMap) -> Reply {
    match resolved {
        Resolved::MethodNotAllowed(allowed) if *method == Method::HEAD => {
            with_header(empty(StatusCode::METHOD_NOT_ALLOWED), "allow", &allowed.join(", "))
        }
        Resolved::MethodNotAllowed(allowed) => {
            with_header(detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"), "allow", &allowed.join(", "))
        }
        Resolved::Redirect(path) => {
            let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
            let query =
                uri.query().filter(|query| !query.is_empty()).map(|query| format!("?{query}")).unwrap_or_default();
            let location = percent_encode(&format!("http://{host}{path}{query}"));
            with_header(empty(StatusCode::TEMPORARY_REDIRECT), "location", &location)
        }
        Resolved::NotFound | Resolved::Serve(..) => detail(StatusCode::NOT_FOUND, "Not Found"),
    }
}
