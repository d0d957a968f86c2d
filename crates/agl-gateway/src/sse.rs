//! A decoder of server-sent events: bytes in, cut anywhere, events out.

/// The longest event that is decoded. A model server's longest holds one chunk of an answer, or the prompt's token ids.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// An event that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// Its `data` lines, joined by line feeds.
    pub(crate) data: Vec<u8>,
    /// Where it ends in the bytes that completed it.
    pub(crate) end: usize,
}

/// An event is longer than anybody would send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server-sent event is longer than {MAX_EVENT_BYTES} bytes")]
pub(crate) struct EventTooLong;

/// Reads the format of the WHATWG standard: lines end with CR, LF or both; a blank line ends an event; lines that start
/// with a colon are comments. Fields other than `data` are not needed here.
#[derive(Debug, Default)]
pub(crate) struct SseDecoder {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    after_cr: bool,
    after_first_line: bool,
}

impl SseDecoder {
    /// Takes the next bytes; the events that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, EventTooLong> {
        let mut events = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            // CR LF is one line end, even when cut between the two.
            if std::mem::take(&mut self.after_cr) && bytes[at] == b'\n' {
                at += 1;
                continue;
            }
            let rest = &bytes[at..];
            let Some(length) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(rest);
                break;
            };
            self.line.extend_from_slice(&rest[..length]);
            at += length + 1;
            if rest[length] == b'\r' {
                let pair = bytes.get(at) == Some(&b'\n');
                at += usize::from(pair);
                self.after_cr = !pair && at == bytes.len();
            }
            events.extend(self.end_line().map(|data| SseEvent { data, end: at }));
        }
        let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
        if held > MAX_EVENT_BYTES { Err(EventTooLong) } else { Ok(events) }
    }

    /// What the stream ended in the middle of, if that has data.
    pub(crate) fn finish(&mut self) -> Option<Vec<u8>> {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.data.take()
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        let line = match line.strip_prefix(b"\xEF\xBB\xBF") {
            Some(rest) if !self.after_first_line => rest,
            _ => &line,
        };
        self.after_first_line = true;
        if line.is_empty() {
            return self.data.take();
        }
        let value = match line.strip_prefix(b"data") {
            Some([b':', b' ', value @ ..] | [b':', value @ ..]) => value,
            Some([]) => &[],
            _ => return None,
        };
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            data => *data = Some(value.to_vec()),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(chunks: &[&[u8]]) -> Vec<String> {
        let mut decoder = SseDecoder::default();
        let mut data: Vec<Vec<u8>> = Vec::new();
        for chunk in chunks {
            data.extend(decoder.push(chunk).unwrap().into_iter().map(|event| event.data));
        }
        data.extend(decoder.finish());
        data.into_iter().map(|data| String::from_utf8(data).unwrap()).collect()
    }

    const STREAM: &str = "\u{feff}: comment\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\ndata: lines é\r\n\r\nid: 7\rdata\r\r\
                          retry: 1\n\n:\n\ndata:  [DONE]";
    const EVENTS: [&str; 4] = ["{\"a\":1}", "two\nlines é", "", " [DONE]"];

    #[test]
    fn every_line_end_comment_and_field_is_understood() {
        assert_eq!(decode(&[STREAM.as_bytes()]), EVENTS);
    }

    #[test]
    fn cuts_change_nothing() {
        let bytes = STREAM.as_bytes();
        for cut in 0..=bytes.len() {
            assert_eq!(decode(&[&bytes[..cut], &bytes[cut..]]), EVENTS, "cut at {cut}");
        }
        assert_eq!(decode(&bytes.chunks(1).collect::<Vec<_>>()), EVENTS);
    }

    #[test]
    fn an_event_says_where_it_ends() {
        let ends = |bytes: &[u8]| {
            let events = SseDecoder::default().push(bytes).unwrap();
            events.into_iter().map(|event| event.end).collect::<Vec<_>>()
        };
        assert_eq!(ends(b"data: 1\n\ndata: 2\n\ndata: 3"), [9, 18]);
        assert_eq!(ends(b"data: 1\r\n\r\ndata: 2\r\r"), [11, 20]);
    }

    proptest! {
        #[test]
        fn any_cuts_of_any_bytes_give_the_same_events(
            text in "(data: ?|:|\r|\n|\r\n|[a-z]|event: ){0,40}",
            cuts in prop::collection::vec(0_usize..200, 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut places: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let chunks: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(decode(&chunks), decode(&[bytes]));
        }
    }
}
