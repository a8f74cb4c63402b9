//! `stack: system`: the kernel speaks TCP with the clients, at a listener on the device's own address; see `nat.rs` for how
//! packets get there. What is accepted is a plain socket, so that its bytes can be spliced.
//!
//! The kernel answers a client before anybody has dialled for it, so a closed port shows as a connection that is reset.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use culvert_core::listener::StreamInbound;
use culvert_core::{
    BoxStream, Dispatch, Handshake, Inbound, Incoming, Io, ServeError, Session, StartError, StreamServer, Tag,
};
use culvert_os::netlink::{self, Prefix};
use culvert_os::socket::{KeepAlive, TcpListen};
use culvert_wire::{BufChain, Target};
use tracing::warn;

use super::nat::{Nat, Side};

/// The listeners, one for each family.
pub(super) struct System {
    tag: Tag,
    netns: Option<String>,
    /// Own addresses, each with the next one.
    addresses: Vec<(IpAddr, IpAddr)>,
    loopback: Vec<IpAddr>,
    listeners: std::sync::Mutex<Vec<StreamInbound>>,
}

impl System {
    /// # Errors
    /// The first network of a family has no room for a second address; its text.
    pub(super) fn new(
        tag: Tag,
        netns: Option<String>,
        addresses: &[Prefix],
        loopback: Vec<IpAddr>,
    ) -> Result<Self, String> {
        let first = |v6: bool| addresses.iter().find(|one| one.ip.is_ipv6() == v6);
        let pair = |prefix: &Prefix| match next(prefix) {
            Some(next) => Ok((prefix.ip, next)),
            None => Err(format!(
                "needs one more address than {}/{} has room for; write a shorter prefix",
                prefix.ip, prefix.len
            )),
        };
        let addresses =
            [first(false), first(true)].into_iter().flatten().map(pair).collect::<Result<_, _>>()?;
        Ok(Self { tag, netns, addresses, loopback, listeners: std::sync::Mutex::default() })
    }

    /// Listens, and says what to turn around.
    pub(super) async fn start(&self, dispatch: &Dispatch) -> Result<Arc<Nat>, StartError> {
        let nat = Arc::new(OnceLock::new());
        let (mut sides, mut listeners) = (Vec::new(), Vec::new());
        for (own, guest) in &self.addresses {
            let options = TcpListen {
                netns: self.netns.clone(),
                keep_alive: Some(KeepAlive::default()),
                ..TcpListen::default()
            };
            let server = Arc::new(Server { nat: Arc::clone(&nat) });
            let listener = StreamInbound::new(self.tag.clone(), SocketAddr::new(*own, 0), options, server);
            match listener.start(dispatch).await {
                Ok(()) => {}
                // The address is not there where IPv6 is switched off.
                Err(error) if own.is_ipv6() => {
                    warn!(
                        "inbound/{}: {}; IPv6 goes by our own stack",
                        self.tag,
                        culvert_core::Chain(&error)
                    );
                    continue;
                }
                Err(error) => {
                    self.stop(listeners).await;
                    return Err(error);
                }
            }
            sides
                .extend(listener.local_addrs().first().map(|local| Side { listener: *local, guest: *guest }));
            listeners.push(listener);
        }
        *self.listeners.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = listeners;
        Ok(Arc::clone(nat.get_or_init(|| Nat::new(sides, self.loopback.clone()))))
    }

    pub(super) async fn close(&self) {
        let listeners =
            std::mem::take(&mut *self.listeners.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        self.stop(listeners).await;
    }

    async fn stop(&self, listeners: Vec<StreamInbound>) {
        for listener in listeners {
            listener.close().await;
        }
    }
}

/// The address after an interface's own, if it is in the same network.
pub(super) fn next(prefix: &Prefix) -> Option<IpAddr> {
    let ip = match prefix.ip {
        IpAddr::V4(ip) => IpAddr::V4(ip.to_bits().checked_add(1)?.into()),
        IpAddr::V6(ip) => IpAddr::V6(ip.to_bits().checked_add(1)?.into()),
    };
    (netlink::network(Prefix { ip, ..*prefix }) == netlink::network(*prefix)).then_some(ip)
}

struct Server {
    nat: Arc<OnceLock<Arc<Nat>>>,
}

#[async_trait]
impl StreamServer for Server {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        _handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let flow = self.nat.get().and_then(|nat| nat.flow(session.source));
        let Some((source, target)) = flow else {
            return Err(ServeError::Denied("connection did not come by the device"));
        };
        dispatch.submit(Incoming {
            session: Session { source, target: Target::from(target), ..session },
            io: Io::Stream(conn),
            early: BufChain::new(),
            reply: None,
            udp_timeout: None,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_address_has_to_be_of_the_same_network() {
        let after = |text: &str| {
            let (ip, len) = text.split_once('/').unwrap();
            next(&Prefix { ip: ip.parse().unwrap(), len: len.parse().unwrap() }).map(|ip| ip.to_string())
        };
        assert_eq!(after("172.19.0.1/30").as_deref(), Some("172.19.0.2"));
        assert_eq!(after("fdfe::1/126").as_deref(), Some("fdfe::2"));
        for alone in ["172.19.0.1/32", "172.19.0.3/30", "fdfe::1/128", "255.255.255.255/0"] {
            assert_eq!(after(alone), None, "{alone}");
        }
    }
}
