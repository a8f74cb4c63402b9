//! A hello of no browser: made up once, then always the same.
//!
//! The likelihoods are uTLS's, so that the crowd of programs that do this is one. TLS 1.3 is always offered, the first
//! key is never one of P-256, and where the hybrid group is offered a key of it is shown: a server that prefers it
//! would ask for one, at the cost of a round trip, and with REALITY in vain. It is made once in the life of
//! the program, so its lists may stay for good.

use super::dice::{happens, shuffle};
use super::profiles::{
    ALPS, EXTENDED_MASTER_SECRET, KEY_SHARE, PADDING, POINT_FORMATS, PROTOCOLS, PSK_MODES, Profile,
    RENEGOTIATION_INFO, SCT, SERVER_NAME, SESSION_TICKET, SIGNATURE_ALGORITHMS, STATUS_REQUEST,
    SUPPORTED_GROUPS, SUPPORTED_VERSIONS,
};

pub(super) fn profile() -> Profile {
    let alpn = happens(70);
    let mut extensions = vec![
        SERVER_NAME,
        SESSION_TICKET,
        SIGNATURE_ALGORITHMS,
        POINT_FORMATS,
        SUPPORTED_GROUPS,
        PADDING,
        KEY_SHARE,
        PSK_MODES,
        SUPPORTED_VERSIONS,
    ];
    for (kind, percent) in [
        (PROTOCOLS, if alpn { 100 } else { 0 }),
        (STATUS_REQUEST, 74),
        (SCT, 46),
        (RENEGOTIATION_INFO, 75),
        (EXTENDED_MASTER_SECRET, 77),
        (ALPS, if alpn { 33 } else { 0 }),
    ] {
        if happens(percent) {
            extensions.push(kind);
        }
    }
    shuffle(&mut extensions);
    let hybrid = happens(71);
    let mut groups = vec![0x001d, 0x0017, 0x0018];
    if happens(46) {
        groups.push(0x0019);
    }
    if hybrid {
        groups.insert(0, 0x11ec);
    }
    let mut shares = vec![0x001d];
    if happens(50) {
        shares.push(0x0017);
    }
    if hybrid {
        shares.insert(0, 0x11ec);
    }
    Profile {
        suites: suites().leak(),
        extensions: extensions.leak(),
        shuffled: false,
        groups: groups.leak(),
        shares: shares.leak(),
        one_key: false,
        versions: &[0x0304, 0x0303],
        schemes: schemes().leak(),
        protocols: &["h2", "http/1.1"],
        compression: &[],
        ech: (&[], &[]),
    }
}

fn suites() -> Vec<u16> {
    let mut tls13 = [0x1301, 0x1302, 0x1303];
    let mut strong = [0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8];
    let mut weak = [0xc009, 0xc013, 0xc00a, 0xc014, 0x009c, 0x009d, 0x002f, 0x0035, 0xc012, 0x000a];
    shuffle(&mut tls13);
    shuffle(&mut strong);
    shuffle(&mut weak);
    let rest: Vec<u16> = strong.into_iter().chain(weak).collect();
    let count = rest.len();
    // The later, the likelier to be left out.
    let kept =
        rest.into_iter().enumerate().filter(|(at, _)| !happens(40 * at / count)).map(|(_, suite)| suite);
    tls13.into_iter().chain(kept).collect()
}

fn schemes() -> Vec<u16> {
    let mut schemes = vec![0x0403, 0x0401, 0x0503, 0x0501, 0x0201, 0x0601, 0x0804];
    if happens(63) {
        schemes.push(0x0203);
    }
    if happens(59) {
        schemes.push(0x0603);
    }
    if happens(90) {
        schemes.extend([0x0805, 0x0806]);
    }
    shuffle(&mut schemes);
    schemes
}
