//! HTTP to the byte: a request is sent as it was recorded, whatever a client library would make of it.

use std::fmt::Write as _;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: String,
    /// Path and query, as they go over the wire.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// A header's value; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }
}

/// Sends a request on a connection of its own.
pub async fn send(address: SocketAddr, ask: &Ask) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut head = format!("{} {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n", ask.method, ask.target);
    for (name, value) in &ask.headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    let body = ask.body.as_deref().unwrap_or_default();
    if ask.body.is_some() || ["POST", "PATCH", "PUT"].contains(&ask.method.as_str()) {
        write!(head, "Content-Length: {}\r\n", body.len()).unwrap();
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
}

/// Sends a request and reads the whole answer.
pub async fn exchange(address: SocketAddr, ask: &Ask) -> Answer {
    let mut bytes = Vec::new();
    send(address, ask).await.read_to_end(&mut bytes).await.unwrap();
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("an HTTP answer");
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let pairs = lines.map(|line| line.split_once(": ").unwrap_or((line.trim_end_matches(':'), "")));
    let headers = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Answer { status, headers, body: bytes[end + 4..].to_vec() }
}
