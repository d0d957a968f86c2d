//! What can be set about the server.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use agl_gateway::GatewaySettings;

/// Where to listen, whom to let in, and the limits of a request.
#[derive(Clone, PartialEq)]
pub struct ServerOptions {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// The key that callers must show; empty lets everybody in.
    pub key: String,
    /// The data plane.
    pub gateway: GatewaySettings,
    /// The largest request body.
    pub max_body_bytes: usize,
    /// The longest that a long poll waits, whatever the caller asks for.
    pub max_wait: Duration,
    /// How long requests may go on after shutdown has begun.
    pub shutdown_grace: Duration,
    /// How long a connection may take to send its request head, and may stand idle between requests.
    pub head_timeout: Duration,
}

impl Default for ServerOptions {
    /// As `agentlightning` 1.0.2, with limits where it has none.
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 8080,
            key: String::new(),
            gateway: GatewaySettings::default(),
            max_body_bytes: 64 << 20,
            max_wait: Duration::from_mins(1),
            shutdown_grace: Duration::from_secs(10),
            head_timeout: Duration::from_mins(2),
        }
    }
}

impl fmt::Debug for ServerOptions {
    /// Everything but the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("key", &if self.key.is_empty() { "(none)" } else { "(hidden)" })
            .field("gateway", &self.gateway)
            .field("max_body_bytes", &self.max_body_bytes)
            .field("max_wait", &self.max_wait)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("head_timeout", &self.head_timeout)
            .finish()
    }
}
