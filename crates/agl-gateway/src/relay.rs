//! A stream on its way to the agent: the bytes pass as they come, and a copy of them is put together for the event.

use std::fmt;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::assemble::{Assembler, Chunk};
use crate::record::Recorder;
use crate::sse::SseDecoder;

/// The body that the agent reads. It keeps the call when the model server has said all, before the agent has heard the
/// last of it, so that whoever acts on the end of the stream finds the event. A stream that breaks, or whose agent goes
/// away, is kept too, as an error that is never trained on.
pub struct Relay {
    upstream: Incoming,
    decoder: SseDecoder,
    /// What was put together, and who keeps it; gone once kept.
    unkept: Option<(Assembler, Recorder)>,
    /// The agent did not ask for the usage chunk, which is there for us, so that events are passed on only when whole.
    hide_usage: bool,
    /// Bytes of an event that is not whole yet.
    held: BytesMut,
    idle_timeout: Duration,
    idle: Pin<Box<Sleep>>,
    ended: bool,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("hide_usage", &self.hide_usage)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Why a stream broke off.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The model server's connection broke.
    #[error("the model server broke off its stream: {0}")]
    Upstream(#[from] hyper::Error),
    /// The model server fell silent.
    #[error("the model server sent nothing for {0:?}")]
    Silent(Duration),
}

impl Relay {
    pub(crate) fn new(upstream: Incoming, recorder: Recorder, hide_usage: bool, idle_timeout: Duration) -> Self {
        Self {
            upstream,
            decoder: SseDecoder::default(),
            unkept: Some((Assembler::default(), recorder)),
            hide_usage,
            held: BytesMut::new(),
            idle_timeout,
            idle: Box::pin(tokio::time::sleep(idle_timeout)),
            ended: false,
        }
    }

    /// Reads a copy of the bytes; what of them may be passed on now.
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        let Some((assembler, _)) = &mut self.unkept else { return bytes };
        let Ok(events) = self.decoder.push(&bytes) else {
            tracing::warn!("a streamed event is too long to be read; the rest of the stream passes unread");
            self.keep(false);
            self.held.extend_from_slice(&bytes);
            return self.held.split().freeze();
        };
        let mut passed = BytesMut::new();
        let mut start = 0;
        let mut done = false;
        for event in events {
            let chunk = assembler.push(&event.data);
            done |= chunk == Chunk::Done;
            if self.hide_usage {
                let before = self.held.split();
                if chunk != Chunk::Usage {
                    passed.extend_from_slice(&before);
                    passed.extend_from_slice(&bytes[start..event.end]);
                }
                start = event.end;
            }
        }
        if done {
            self.keep(true);
        }
        if !self.hide_usage {
            return bytes;
        }
        self.held.extend_from_slice(&bytes[start..]);
        if done {
            passed.extend_from_slice(&self.held.split());
        }
        passed.freeze()
    }

    /// Keeps the call, once. `whole`: the stream came to its end.
    fn keep(&mut self, whole: bool) {
        let Some((mut assembler, recorder)) = self.unkept.take() else { return };
        if let Some(data) = self.decoder.finish() {
            assembler.push_unended(&data);
        }
        let assembled = assembler.finish();
        recorder.keep_stream(&assembled.answer, whole && assembled.complete);
    }
}

impl Drop for Relay {
    /// The agent went away, or the stream broke.
    fn drop(&mut self) {
        self.keep(false);
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let relay = &mut *self;
        loop {
            if relay.ended {
                return Poll::Ready(None);
            }
            let Poll::Ready(frame) = Pin::new(&mut relay.upstream).poll_frame(cx) else {
                ready!(relay.idle.as_mut().poll(cx));
                relay.ended = true;
                relay.keep(false);
                return Poll::Ready(Some(Err(RelayError::Silent(relay.idle_timeout))));
            };
            relay.idle.as_mut().reset(tokio::time::Instant::now() + relay.idle_timeout);
            let passed = match frame {
                Some(Ok(frame)) => frame.into_data().map(|bytes| relay.pass(bytes)).unwrap_or_default(),
                Some(Err(error)) => {
                    relay.ended = true;
                    relay.keep(false);
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    relay.ended = true;
                    relay.keep(true);
                    relay.held.split().freeze()
                }
            };
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
    }
}
