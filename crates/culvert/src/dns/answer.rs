//! An answer as rules look at it.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use culvert_dns::message::wire::{Section as Place, read_name, uncompressed};
use culvert_dns::{Rcode, Reply};
use culvert_rules::rule::{Response, Responses, Section};

use crate::router::condition::record_key;

const HTTPS: u16 = 65;

/// One answer.
pub(super) struct Evaluated {
    pub(super) answer: culvert_dns::Answer,
    addresses: Vec<IpAddr>,
    rcode: u16,
    records: Vec<(Section, Vec<u8>)>,
}

impl Evaluated {
    pub(super) fn new(answer: culvert_dns::Answer) -> Self {
        let reply = Arc::clone(&answer.reply);
        let bytes = reply.as_bytes();
        let mut records = Vec::new();
        for (place, record) in reply.walk() {
            let section = match place {
                Place::Answer => Section::Answer,
                Place::Authority => Section::Authority,
                Place::Additional => Section::Additional,
            };
            let Ok((owner, _)) = read_name(bytes, record.start) else { continue };
            let data = uncompressed(bytes, record.kind, record.data.clone());
            records.push((section, record_key(owner.as_bytes(), record.kind, record.class, &data)));
        }
        Self { addresses: addresses(&reply), rcode: reply.rcode().0, records, answer }
    }
}

impl Response for Evaluated {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn rcode(&self) -> u16 {
        self.rcode
    }

    fn has_record(&self, section: Section, record: &[u8]) -> bool {
        self.records.iter().any(|(place, key)| *place == section && key == record)
    }
}

/// The addresses in a reply, those that HTTPS records hint at included.
pub(super) fn addresses(reply: &Reply) -> Vec<IpAddr> {
    let bytes = reply.as_bytes();
    let mut addresses: Vec<IpAddr> = reply.addresses().collect();
    for (place, record) in reply.walk() {
        if place == Place::Answer && record.kind == HTTPS {
            hints(bytes, record.data, &mut addresses);
        }
    }
    addresses
}

/// Reads the address hints of an HTTPS record (RFC 9460 section 7.3).
fn hints(bytes: &[u8], data: std::ops::Range<usize>, addresses: &mut Vec<IpAddr>) -> Option<()> {
    let (_, mut at) = read_name(bytes, data.start + 2).ok()?;
    while at < data.end {
        let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let (key, length) = (word(at)?, usize::from(word(at + 2)?));
        let value = bytes.get(at + 4..at + 4 + length)?;
        match key {
            4 => addresses.extend(value.as_chunks::<4>().0.iter().map(|ip| IpAddr::V4(Ipv4Addr::from(*ip)))),
            6 => addresses.extend(value.as_chunks::<16>().0.iter().map(|ip| IpAddr::V6(Ipv6Addr::from(*ip)))),
            _ => {}
        }
        at += 4 + length;
    }
    Some(())
}

/// Whether a rule on addresses may look at the answer at all.
pub(super) fn has_meaning(reply: &Reply) -> bool {
    matches!(reply.rcode(), Rcode::NOERROR | Rcode::NXDOMAIN)
}

type Asking<'a> = Pin<Box<dyn Future<Output = Option<Evaluated>> + Send + 'a>>;

/// The answers of `evaluate` rules. Queries are under way at the same time, for as long as somebody waits for any of
/// them. One that failed stands for itself: rules that refer to it do not match.
#[derive(Default)]
pub(super) struct Answers<'a>(Vec<Entry<'a>>);

struct Entry<'a> {
    tag: Option<String>,
    answer: Option<Evaluated>,
    /// `None` once it has ended. Never locked: it is here so that others may look at the answers.
    asking: Mutex<Option<Asking<'a>>>,
    has_ended: bool,
}

impl<'a> Answers<'a> {
    /// How many there are, whether they have come or not.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// One more is asked for.
    pub(super) fn begin(
        &mut self,
        tag: Option<String>,
        asking: impl Future<Output = Option<Evaluated>> + Send + 'a,
    ) {
        let asking = Mutex::new(Some(Box::pin(asking) as Asking<'a>));
        self.0.push(Entry { tag, answer: None, asking, has_ended: false });
    }

    /// Waits until all that `tags` mean has come, of the first `until` answers.
    pub(super) async fn wait(&mut self, tags: &[Option<String>], until: usize) {
        while !self.has_come(tags, until) {
            self.progress().await;
        }
    }

    /// Whether all that `tags` mean has come, or will not.
    pub(super) fn has_come(&self, tags: &[Option<String>], until: usize) -> bool {
        tags.iter().all(|tag| self.entry(tag.as_deref(), until).is_none_or(|entry| entry.has_ended))
    }

    /// Waits until one more has come.
    pub(super) async fn progress(&mut self) {
        std::future::poll_fn(|cx| {
            let mut has_ended = self.0.iter().all(|entry| entry.has_ended);
            for entry in &mut self.0 {
                let Some(asking) = &mut *entry.asking.get_mut().unwrap_or_else(PoisonError::into_inner)
                else {
                    continue;
                };
                if let Poll::Ready(answer) = asking.as_mut().poll(cx) {
                    (entry.answer, entry.asking) = (answer, Mutex::new(None));
                    (entry.has_ended, has_ended) = (true, true);
                }
            }
            if has_ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The latest answer with this tag, or the latest one without a tag, of the first `until`.
    pub(super) fn find(&self, tag: Option<&str>, until: usize) -> Option<&Evaluated> {
        self.entry(tag, until)?.answer.as_ref()
    }

    fn entry(&self, tag: Option<&str>, until: usize) -> Option<&Entry<'a>> {
        self.0.iter().take(until).rev().find(|entry| entry.tag.as_deref() == tag)
    }
}

/// The answers that a rule at some place can refer to: those asked for before it.
pub(super) struct Before<'a, 'q> {
    pub(super) answers: &'a Answers<'q>,
    pub(super) until: usize,
}

impl Responses for Before<'_, '_> {
    fn response(&self, tag: Option<&str>) -> Option<&dyn Response> {
        self.answers.find(tag, self.until).map(|answer| answer as &dyn Response)
    }
}
