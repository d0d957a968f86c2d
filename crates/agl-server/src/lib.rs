//! The gateway process: HTTP routes, authentication, shutdown.
//!
//! A request goes through [`app`]: find the route, check the key, read the body, call the handler. Handlers check what
//! they got ([`validate`]), ask the store or the gateway, and answer. [`Server`] listens and shuts down.

mod app;
mod auth;
mod body;
mod handlers;
mod options;
mod reply;
mod routes;
mod serve;
mod validate;

pub use options::ServerOptions;
pub use serve::{BindError, Server};
