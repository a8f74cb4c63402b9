//! End-to-end tests: whole programs, real sockets, and sing-box as the other end.
//!
//! | module      | what it holds                                                                         |
//! |-------------|---------------------------------------------------------------------------------------|
//! | [`table`]   | **the tables**: one row for each way into a program and each protocol between two      |
//! | [`checks`]  | what every row must do: integrity, half-close, resets, datagrams, names, credentials  |
//! | [`site`]    | a row brought to life: origin, programs, and ways to dial through them                |
//! | [`quic`]    | protocols over QUIC: restarts, sleep, other networks, a foreign HTTP/3 client          |
//! | [`proxy`]   | one program with one inbound, for the tests that speak by hand                        |
//! | [`curl`]    | curl through every kind of proxy                                                      |
//! | [`ech`]     | names encrypted in the hellos of browsers                                             |
//! | [`http`]    | the HTTP proxy's finer points, each from a field report                               |
//! | [`socks`]   | the same for SOCKS                                                                    |
//! | [`trojan_gfw`] | Trojan's own program, and strangers at a server's door |
//! | [`libev`]   | Shadowsocks with shadowsocks-libev, its plugins, and relays                           |
//! | [`hostile`] | clients that send garbage, stall, vanish, or come in crowds                           |
//! | [`probing`] | what probers get from a REALITY server, and from the site it imitates                 |
//! | [`between`] | somebody on the way who cuts and changes, and abuse of multiplexing             |
//! | [`reality`] | protocols inside REALITY, and strangers before it                                      |
//! | [`shadowtls`] | ShadowTLS with Shadowsocks inside, and strangers before it                        |
//! | [`v2ray`]   | Debian's v2ray as the other end                                                       |
//! | [`tun`]     | a TUN device in a network namespace of its own                                        |
//! | [`tun_faults`] | the same: what others were seen to do wrong                                    |
//! | [`tun_routes`] | the same, put in the way of the system's traffic and of clients behind it             |
//! | [`exec`]    | `culvert exec` and `culvert tun2socks`                                                |
//! | [`wireguard`] | WireGuard with sing-box and with wireguard-go |
//! | [`vision`]  | VLESS's flow with TLS connections inside                                              |
//! | [`transparent`] | connections that a packet filter turns aside, from a namespace of their own     |
//! | [`surroundings`] | neighbours, interfaces and the default route in rules and for sockets         |
//! | [`links`]   | DNS servers that ask the links: `dhcp`, `mdns`                                        |
//! | [`unbound`] | DNS servers of every kind against Debian's unbound                                    |
//! | [`acme`]    | certificates from an authority                                                        |
//! | [`program`] | the command line, signals, start and reload                                           |
//!
//! Everything listens on loopback ports of its own. `E2E_CHECKS=reset,bulk` runs only the checks whose names contain
//! one of the words.
#![allow(clippy::print_stderr, reason = "the tests report there")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod acme;
mod between;
mod checks;
mod curl;
mod ech;
mod exec;
mod hostile;
mod http;
mod libev;
mod links;
mod probing;
mod program;
mod proxy;
mod quic;
mod reality;
mod shadowtls;
mod site;
mod socks;
mod surroundings;
mod table;
mod transparent;
mod trojan_gfw;
mod tun;
mod tun_faults;
mod tun_routes;
mod unbound;
mod v2ray;
mod vision;
mod wireguard;

use culvert_testkit::peer::Program;

/// One of the programs that can stand at an end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Culvert,
    SingBox,
}

impl Side {
    /// The program, or `None`, said aloud, when this machine lacks it.
    fn program(self) -> Option<Program> {
        match self {
            Self::Culvert => Some(culvert()),
            Self::SingBox => Program::sing_box(),
        }
    }
}

/// The program under test.
fn culvert() -> Program {
    Program::culvert(env!("CARGO_BIN_EXE_culvert"))
}

/// Runs the body of a test on a runtime of its own, so that every child is started by the test's thread, and where that is
/// permitted in a network of its own.
fn run<F: Future<Output = culvert_testkit::Result>>(test: F) {
    if let Err(error) = culvert_os::netns::isolate_thread() {
        eprintln!("the test shares the machine's loopback: {error}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Err(error) = runtime.block_on(test) {
        panic!("{error}");
    }
}
