//! The MACs of handshake messages, and proofs of an address that are asked for under load.
//!
//! ```text
//! cookie reply, 64 bytes:  0 type 3, three zeros · 4 receiver · 8 nonce, 24 · 32 cookie, sealed
//! ```
//!
//! `mac1` shows that the sender knows whom he writes to; `mac2`, that he has been sent a cookie to the address that he
//! writes from. Without a right `mac1` nothing is ever answered.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::crypto::{HASH, Key, MAC, hash, mac, open_extended, random, same, seal_extended};

pub(crate) const REPLY: usize = 64;

/// How long a cookie is good for, and how long a secret makes cookies.
const COOKIE: Duration = Duration::from_secs(120);
/// A cookie that is sent is not to be refused on the way.
const LATENCY: Duration = Duration::from_secs(5);
/// Messages with a right `mac1` in one second above which there is load.
const CALM: u32 = 64;
/// How long load lasts after it was last seen.
const TAIL: Duration = Duration::from_secs(1);
/// Handshakes of one address (of IPv6: of a /64) in a second under load, and how many may come at once.
const PER_SECOND: u32 = 20;
const BURST: u32 = 5;
/// Most addresses that are remembered for it.
const ADDRESSES: usize = 4096;

pub(crate) fn mac1_key(public: &[u8; HASH]) -> [u8; HASH] {
    hash(&[b"mac1----", public])
}

pub(crate) fn cookie_key(public: &[u8; HASH]) -> [u8; HASH] {
    hash(&[b"cookie--", public])
}

/// Whoever writes to one receiver.
pub(crate) struct Macs {
    key: [u8; HASH],
}

impl Macs {
    pub(crate) fn new(key: [u8; HASH]) -> Self {
        Self { key }
    }

    /// Puts both MACs at the end of a message, and returns the first.
    pub(crate) fn sign(&self, message: &mut [u8], cookie: Option<&[u8; MAC]>) -> [u8; MAC] {
        let end = message.len();
        let first = mac(&self.key, &[&message[..end - 2 * MAC]]);
        message[end - 2 * MAC..end - MAC].copy_from_slice(&first);
        if let Some(cookie) = cookie {
            let second = mac(cookie, &[&message[..end - MAC]]);
            message[end - MAC..].copy_from_slice(&second);
        }
        first
    }

    /// Whether the first MAC of a message is right.
    pub(crate) fn verify(&self, message: &[u8]) -> bool {
        let end = message.len();
        same(&mac(&self.key, &[&message[..end - 2 * MAC]]), &message[end - 2 * MAC..end - MAC])
    }
}

/// What to do with a message whose first MAC is right.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Work on it.
    Work,
    /// Ask for a proof of the address first.
    Ask,
    /// Nothing.
    Drop,
}

/// Who receives handshakes: measures the load, makes cookies and checks them.
pub(crate) struct Guard {
    key: [u8; HASH],
    secret: Key,
    before: Key,
    since: Instant,
    second: (Instant, u32),
    loaded_until: Option<Instant>,
    addresses: HashMap<IpAddr, (Instant, u32)>,
}

impl Guard {
    pub(crate) fn new(public: &[u8; HASH], now: Instant) -> Self {
        Self {
            key: cookie_key(public),
            secret: Key(random()),
            before: Key(random()),
            since: now,
            second: (now, 0),
            loaded_until: None,
            addresses: HashMap::new(),
        }
    }

    pub(crate) fn judge(&mut self, message: &[u8], source: SocketAddr, now: Instant) -> Verdict {
        if !self.is_loaded(now) {
            return Verdict::Work;
        }
        let end = message.len();
        self.renew(now);
        let proves = [&self.secret, &self.before].into_iter().any(|secret| {
            same(&mac(&cookie(secret, source), &[&message[..end - MAC]]), &message[end - MAC..])
        });
        match proves {
            false => Verdict::Ask,
            true if self.allow(source.ip(), now) => Verdict::Work,
            true => Verdict::Drop,
        }
    }

    /// Counts a message, and says whether there are too many.
    fn is_loaded(&mut self, now: Instant) -> bool {
        let (since, count) = &mut self.second;
        if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count > CALM {
            self.loaded_until = Some(now + TAIL);
        }
        let loaded = self.loaded_until.is_some_and(|until| now < until);
        if !loaded && !self.addresses.is_empty() {
            self.addresses = HashMap::new();
        }
        loaded
    }

    fn renew(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age >= COOKIE {
            let made = Key(random());
            self.before = std::mem::replace(&mut self.secret, made);
            if age >= 2 * COOKIE {
                self.before = Key(random());
            }
            self.since = now;
        }
    }

    /// A bucket for each address that has proved itself.
    fn allow(&mut self, ip: IpAddr, now: Instant) -> bool {
        let network = match ip {
            IpAddr::V4(_) => ip,
            IpAddr::V6(ip) => (u128::from(ip) >> 64 << 64).to_be_bytes().into(),
        };
        if self.addresses.len() >= ADDRESSES && !self.addresses.contains_key(&network) {
            let refill = Duration::from_secs(1);
            self.addresses.retain(|_, (since, _)| now.saturating_duration_since(*since) < refill);
            if self.addresses.len() >= ADDRESSES {
                return false;
            }
        }
        let (since, left) = self.addresses.entry(network).or_insert((now, BURST));
        let each = Duration::from_secs(1) / PER_SECOND;
        let refilled = now.saturating_duration_since(*since).as_nanos() / each.as_nanos();
        if refilled > 0 {
            *left = BURST.min(left.saturating_add(u32::try_from(refilled).unwrap_or(BURST)));
            *since = now;
        }
        *left > 0 && {
            *left -= 1;
            true
        }
    }

    /// The answer to a message that proves no address. `receiver` is the sender's name for what it began.
    pub(crate) fn reply(
        &mut self,
        message: &[u8],
        source: SocketAddr,
        nonce: &[u8; 24],
        now: Instant,
    ) -> [u8; REPLY] {
        self.renew(now);
        seal_reply(&self.key, &cookie(&self.secret, source), message, nonce)
    }
}

fn cookie(secret: &Key, source: SocketAddr) -> [u8; MAC] {
    let port = source.port().to_be_bytes();
    match source.ip() {
        IpAddr::V4(ip) => mac(&secret.0, &[&ip.octets(), &port]),
        IpAddr::V6(ip) => mac(&secret.0, &[&ip.octets(), &port]),
    }
}

fn seal_reply(key: &[u8; HASH], cookie: &[u8; MAC], message: &[u8], nonce: &[u8; 24]) -> [u8; REPLY] {
    let mut reply = [0; REPLY];
    reply[0] = 3;
    reply[4..8].copy_from_slice(&message[4..8]);
    reply[8..32].copy_from_slice(nonce);
    let end = message.len();
    seal_extended(key, nonce, &message[end - 2 * MAC..end - MAC], cookie, &mut reply[32..]);
    reply
}

/// A cookie that was sent to us, with the time until which it is good.
pub(crate) struct Held {
    pub(crate) cookie: [u8; MAC],
    until: Instant,
}

impl Held {
    /// Reads a reply to the message whose first MAC was `first`, from the owner of `key`.
    pub(crate) fn read(
        key: &[u8; HASH],
        first: &[u8; MAC],
        reply: &[u8; REPLY],
        now: Instant,
    ) -> Option<Self> {
        let nonce: &[u8; 24] = reply[8..32].try_into().ok()?;
        let cookie = open_extended(key, nonce, first, &reply[32..]).ok()?;
        Some(Self { cookie, until: now + COOKIE - LATENCY })
    }

    pub(crate) fn is_good(&self, now: Instant) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::Pair;
    use crate::noise::tests::{from, hex, initiation};

    fn server() -> [u8; HASH] {
        Pair::new(&from(0)).unwrap().public
    }

    fn address(last: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, last], port).into()
    }

    #[test]
    fn the_reply_is_that_of_the_vectors() {
        let (mut message, _) = initiation();
        let nonce: [u8; 24] = std::array::from_fn(|at| at as u8);
        let cookie: [u8; MAC] = std::array::from_fn(|at| 0xd0 + at as u8);
        let reply = seal_reply(&cookie_key(&server()), &cookie, &message, &nonce);
        assert_eq!(
            reply.to_vec(),
            hex(
                "0300000044332211000102030405060708090a0b0c0d0e0f101112131415161797412291615a427c1b9c3143ac2c18e01d560db900c22c45ed99f6da8523901c"
            )
        );
        let first: [u8; MAC] = message[116..132].try_into().unwrap();
        let held = Held::read(&cookie_key(&server()), &first, &reply, Instant::now()).unwrap();
        assert_eq!(held.cookie, cookie);
        Macs::new(mac1_key(&server())).sign(&mut message, Some(&held.cookie));
        assert_eq!(message[132..].to_vec(), hex("061e241fc2fb212e4ee8de2c98116564"));
        assert!(Held::read(&cookie_key(&server()), &[0; MAC], &reply, Instant::now()).is_none());
    }

    #[test]
    fn under_load_an_address_has_to_be_proved_and_only_that_one_is() {
        let now = Instant::now();
        let mut guard = Guard::new(&server(), now);
        let (message, _) = initiation();
        for _ in 0..CALM {
            assert_eq!(guard.judge(&message, address(1, 9), now), Verdict::Work);
        }
        assert_eq!(guard.judge(&message, address(1, 9), now), Verdict::Ask);
        let nonce = [7; 24];
        let reply = guard.reply(&message, address(1, 9), &nonce, now);
        let first: [u8; MAC] = message[116..132].try_into().unwrap();
        let held = Held::read(&cookie_key(&server()), &first, &reply, now).unwrap();
        let mut proved = message;
        Macs::new(mac1_key(&server())).sign(&mut proved, Some(&held.cookie));
        assert_eq!(guard.judge(&proved, address(1, 9), now), Verdict::Work);
        assert_eq!(guard.judge(&proved, address(1, 10), now), Verdict::Ask, "another port");
        assert_eq!(guard.judge(&proved, address(2, 9), now), Verdict::Ask, "another address");
        let later = now + COOKIE;
        guard.loaded_until = Some(later + COOKIE * 4);
        assert_eq!(guard.judge(&proved, address(1, 9), later), Verdict::Work, "by the secret before");
        assert_eq!(guard.judge(&proved, address(1, 9), later + COOKIE), Verdict::Ask, "too old");
    }

    #[test]
    fn load_passes() {
        let now = Instant::now();
        let mut guard = Guard::new(&server(), now);
        let (message, _) = initiation();
        for _ in 0..CALM + 5 {
            guard.judge(&message, address(1, 9), now);
        }
        let soon = now + Duration::from_millis(900);
        assert_eq!(guard.judge(&message, address(1, 9), soon), Verdict::Ask);
        assert_eq!(guard.judge(&message, address(1, 9), soon + 2 * TAIL), Verdict::Work);
    }

    #[test]
    fn one_address_gets_so_many_and_the_table_does_not_grow_without_end() {
        let now = Instant::now();
        let mut guard = Guard::new(&server(), now);
        let allowed = (0..100).filter(|_| guard.allow([10, 0, 0, 1].into(), now)).count();
        assert_eq!(allowed, BURST as usize);
        let later = now + Duration::from_millis(500);
        assert!(guard.allow([10, 0, 0, 1].into(), later));
        for number in 0..3 * ADDRESSES as u32 {
            guard.allow(number.to_be_bytes().into(), later);
            assert!(guard.addresses.len() <= ADDRESSES);
        }
        let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
        let mut guard = Guard::new(&server(), now);
        let allowed = (0..100).filter(|last| guard.allow(v6(*last), now)).count();
        assert_eq!(allowed, BURST as usize, "a network of IPv6 is one customer");
    }
}
