//! The request by which a client shows that it is one, the answer, and the rates that follow.

use culvert_quic::h3::qpack::{self, Field};
use culvert_quic::h3::{HEADERS, put_frame, value};

use super::codec::padding;

/// The status of the answer.
const ACCEPTED: &[u8] = b"233";
/// Lengths of padding: least, and below which.
const PADDING: (usize, usize) = (256, 2048);

/// What a client says.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Request<'a> {
    pub(super) password: &'a [u8],
    /// Bytes per second that it can receive; 0 if it does not say.
    pub(super) receive: u64,
}

impl<'a> Request<'a> {
    /// The client's request among those of a web server's visitors.
    pub(super) fn find(fields: &'a [Field]) -> Option<Self> {
        let path = value(fields, ":path")?;
        let path = path.split(|byte| *byte == b'?').next()?;
        let is = value(fields, ":method") == Some(b"POST")
            && value(fields, ":authority") == Some(b"hysteria")
            && path == b"/auth";
        is.then(|| Self {
            password: value(fields, "hysteria-auth").unwrap_or_default(),
            receive: value(fields, "hysteria-cc-rx").and_then(number).unwrap_or(0),
        })
    }

    /// As a frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        let receive = self.receive.to_string();
        frame([
            (":method", b"POST"),
            (":scheme", b"https"),
            (":authority", b"hysteria"),
            (":path", b"/auth"),
            ("hysteria-auth", self.password),
            ("hysteria-cc-rx", receive.as_bytes()),
            ("hysteria-padding", &padding(PADDING.0, PADDING.1)),
            ("content-length", b"0"),
        ])
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Accepted {
    pub(super) udp: bool,
    /// Bytes per second that the server can receive, 0 without a limit; `None` tells the client to find a rate.
    pub(super) receive: Option<u64>,
}

impl Accepted {
    /// `None` if it is another answer.
    pub(super) fn find(fields: &[Field]) -> Option<Self> {
        if value(fields, ":status") != Some(ACCEPTED) {
            return None;
        }
        let receive = value(fields, "hysteria-cc-rx");
        Some(Self {
            udp: value(fields, "hysteria-udp") == Some(b"true"),
            receive: if receive == Some(b"auto") {
                None
            } else {
                Some(receive.and_then(number).unwrap_or(0))
            },
        })
    }

    /// As a frame.
    pub(super) fn encode(&self) -> Vec<u8> {
        let receive = self.receive.map_or_else(|| "auto".to_owned(), |rate| rate.to_string());
        frame([
            (":status", ACCEPTED),
            ("hysteria-udp", if self.udp { b"true" } else { b"false" }),
            ("hysteria-cc-rx", receive.as_bytes()),
            ("hysteria-padding", &padding(PADDING.0, PADDING.1)),
        ])
    }

    /// What the client sends at: `None` is for BBR to find. `send` is its own limit.
    pub(super) fn rate(&self, send: Option<u64>) -> Option<u64> {
        match (self.receive?, send) {
            (0, send) => send,
            (rate, Some(send)) => Some(rate.min(send)),
            (rate, None) => Some(rate),
        }
    }
}

fn frame<const N: usize>(fields: [(&str, &[u8]); N]) -> Vec<u8> {
    let (mut section, mut frame) = (Vec::new(), Vec::new());
    qpack::encode(fields, &mut section);
    put_frame(HEADERS, &section, &mut frame);
    frame
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// The server's limits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Limits {
    /// Bytes per second to one client.
    pub(super) send: Option<u64>,
    /// From one client.
    pub(super) receive: Option<u64>,
    pub(super) ignore_client: bool,
}

impl Limits {
    /// What is agreed on with a client that can receive `receive`: the rate to send at (`None` is for BBR), and what the
    /// answer says. `None` turns it away: it has to say a rate and does not.
    pub(super) fn agree(&self, receive: u64) -> Option<(Option<u64>, Accepted)> {
        if self.receive.is_some() && self.ignore_client && receive == 0 {
            return None;
        }
        if receive > 0 && (self.receive.is_some() || !self.ignore_client) {
            let rate = self.send.map_or(receive, |send| send.min(receive));
            return Some((Some(rate), Accepted { udp: true, receive: Some(self.receive.unwrap_or(0)) }));
        }
        Some((None, Accepted { udp: true, receive: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use culvert_wire::Reader;

    fn fields(frame: &[u8]) -> Vec<Field> {
        let mut r = Reader::new(frame);
        culvert_quic::h3::take_varint(&mut r).unwrap();
        culvert_quic::h3::take_varint(&mut r).unwrap();
        qpack::decode(r.rest()).unwrap()
    }

    #[test]
    fn request_and_answer_are_read_back() {
        let request = Request { password: b"p\xc3\xa4ss", receive: 1_000_000 };
        assert_eq!(Request::find(&fields(&request.encode())), Some(request));
        for accepted in [
            Accepted { udp: true, receive: None },
            Accepted { udp: false, receive: Some(0) },
            Accepted { udp: true, receive: Some(6_250_000) },
        ] {
            assert_eq!(Accepted::find(&fields(&accepted.encode())), Some(accepted));
        }
    }

    #[test]
    fn only_the_exact_request_counts() {
        let with = |name: &str, text: &str| {
            let mut all = fields(&Request { password: b"x", receive: 0 }.encode());
            all.iter_mut().filter(|(known, _)| known == name.as_bytes()).for_each(|(_, v)| *v = text.into());
            Request::find(&all).is_some()
        };
        assert!(with(":path", "/auth") && with(":path", "/auth?x") && with("hysteria-cc-rx", "many"));
        for (name, text) in [
            (":path", "/auth/"),
            (":path", "/"),
            (":method", "GET"),
            (":authority", "Hysteria"),
            (":authority", "hysteria:443"),
        ] {
            assert!(!with(name, text), "{name} {text}");
        }
    }

    #[test]
    fn rates_are_agreed_on_as_by_sing_box() {
        let limits = |send, receive, ignore_client| Limits { send, receive, ignore_client };
        let rate = |limits: Limits, client| limits.agree(client).map(|(rate, answer)| (rate, answer.receive));
        assert_eq!(rate(limits(None, None, false), 0), Some((None, None)));
        assert_eq!(rate(limits(None, None, false), 9), Some((Some(9), Some(0))));
        assert_eq!(rate(limits(None, None, true), 9), Some((None, None)));
        assert_eq!(
            rate(limits(Some(12_500_000), Some(6_250_000), false), 1_000_000),
            Some((Some(1_000_000), Some(6_250_000)))
        );
        assert_eq!(rate(limits(Some(5), Some(7), true), 9), Some((Some(5), Some(7))));
        assert_eq!(rate(limits(Some(5), Some(7), true), 0), None);
        assert_eq!(rate(limits(Some(5), None, false), u64::MAX), Some((Some(5), Some(0))));
        let answered = |receive| Accepted { udp: true, receive };
        assert_eq!(answered(None).rate(Some(5)), None);
        assert_eq!(answered(Some(0)).rate(Some(5)), Some(5));
        assert_eq!(answered(Some(0)).rate(None), None);
        assert_eq!(answered(Some(9)).rate(Some(5)), Some(5));
        assert_eq!(answered(Some(4)).rate(Some(5)), Some(4));
        assert_eq!(answered(Some(4)).rate(None), Some(4));
    }
}
