//! Model servers: register and forget.

use std::fmt::Write as _;

use agl_protocol::pyjson;
use agl_store::ModelServer;
use http::StatusCode;

use crate::app::{App, Ask};
use crate::reply::{Refused, Reply, json};
use crate::{body, validate};

/// `POST /api/models`: adds servers, or replaces those of the same model and endpoint. All or none.
pub(crate) fn register(app: &App, ask: &Ask) -> Result<Reply, Refused> {
    let servers = validate::model_servers(&body::json(&ask.headers, &ask.body)?)?;
    let text = list(&servers);
    app.store.register(servers)?;
    Ok(json(StatusCode::CREATED, text))
}

/// `DELETE /api/models`: forgets all of them.
pub(crate) fn delete(app: &App) -> Result<Reply, Refused> {
    app.store.forget_servers()?;
    Ok(json(StatusCode::OK, r#"{"status":"ok"}"#))
}

fn list(servers: &[ModelServer]) -> String {
    let mut text = String::from("[");
    for (index, server) in servers.iter().enumerate() {
        text.push_str(if index > 0 { ",{\"model\":" } else { "{\"model\":" });
        pyjson::write_string(&mut text, &server.model);
        text.push_str(",\"endpoint\":");
        pyjson::write_string(&mut text, &server.endpoint);
        // Writing to a String cannot fail.
        let _ = write!(text, ",\"version\":{}}}", server.version.digits());
    }
    text.push(']');
    text
}
