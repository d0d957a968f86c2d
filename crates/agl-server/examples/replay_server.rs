//! A server for replaying recordings: takes `host= port= key= default_proxy.…=` as the recordings name them.
//! The real command line, with the whole override grammar, is `agl-server`.

use agl_server::{Server, ServerOptions};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ServerOptions::default();
    options.gateway.allow_streaming = false;
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').ok_or("arguments are key=value")?;
        let gateway = &mut options.gateway;
        match key {
            "host" => options.host = value.parse()?,
            "port" => options.port = value.parse()?,
            "key" if matches!(value, "null" | "false") => options.key.clear(),
            "key" => value.clone_into(&mut options.key),
            "default_proxy.model_name" => value.clone_into(&mut gateway.model_name),
            "default_proxy.include_log_probs" => gateway.include_log_probs = value.parse()?,
            "default_proxy.include_routed_experts" => gateway.include_routed_experts = value.parse()?,
            "default_proxy.train.temperature" => gateway.train_temperature = value.parse()?,
            "default_proxy.val.temperature" => gateway.val_temperature = value.parse()?,
            _ => return Err(format!("unknown key {key}").into()),
        }
    }
    Server::bind(options).await?.serve(CancellationToken::new()).await;
    Ok(())
}
