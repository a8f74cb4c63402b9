//! `outbounds`: one file per type or group of types that share their options.

pub mod anytls;
pub mod bridge;
pub mod direct;
pub mod group;
pub mod http;
pub mod hysteria;
pub mod naive;
pub mod shadowsocks;
pub mod shadowtls;
pub mod snell;
pub mod socks;
pub mod ssh;
pub mod tor;
pub mod tuic;
pub mod vmess;

use anytls::AnyTlsOutbound;
use bridge::BridgeOutbound;
use direct::{BlockOutbound, DirectOutbound};
use group::{FallbackOutbound, LoadBalanceOutbound, SelectorOutbound, UrlTestOutbound};
use http::HttpOutbound;
use hysteria::{Hysteria2Outbound, HysteriaOutbound};
use naive::NaiveOutbound;
use shadowsocks::ShadowsocksOutbound;
use shadowtls::ShadowTlsOutbound;
use snell::SnellOutbound;
use socks::SocksOutbound;
use ssh::SshOutbound;
use tor::TorOutbound;
use tuic::TuicOutbound;
use vmess::{TrojanOutbound, VlessOutbound, VmessOutbound};

use crate::json;
use crate::table::{Kind, Tagged, kinds};

kinds! {
    /// The types of outbound with their options.
    pub enum OutboundKind: "outbound" in [Outbound] {
        /// Straight to the destination.
        Direct(DirectOutbound) = "direct",
        /// Refuses everything.
        Block(BlockOutbound) = "block",
        /// Packets straight to an interface of the system.
        Bridge(BridgeOutbound) = "bridge",
        /// One of several outbounds, chosen by hand.
        Selector(SelectorOutbound) = "selector",
        /// One of several outbounds, chosen by delay.
        UrlTest(UrlTestOutbound) = "urltest",
        /// The first of several outbounds that works (not in sing-box).
        Fallback(FallbackOutbound) = "fallback",
        /// Several outbounds by turns (not in sing-box).
        LoadBalance(LoadBalanceOutbound) = "load-balance",
        /// SOCKS 4, 4a or 5.
        Socks(SocksOutbound) = "socks",
        /// HTTP CONNECT.
        Http(HttpOutbound) = "http",
        /// Shadowsocks.
        Shadowsocks(ShadowsocksOutbound) = "shadowsocks",
        /// VMess.
        Vmess(VmessOutbound) = "vmess",
        /// VLESS.
        Vless(VlessOutbound) = "vless",
        /// Trojan.
        Trojan(TrojanOutbound) = "trojan",
        /// Naive.
        Naive(NaiveOutbound) = "naive",
        /// Hysteria.
        Hysteria(HysteriaOutbound) = "hysteria",
        /// Hysteria 2.
        Hysteria2(Hysteria2Outbound) = "hysteria2",
        /// TUIC.
        Tuic(TuicOutbound) = "tuic",
        /// ShadowTLS.
        ShadowTls(ShadowTlsOutbound) = "shadowtls",
        /// AnyTLS.
        AnyTls(AnyTlsOutbound) = "anytls",
        /// Snell.
        Snell(SnellOutbound) = "snell",
        /// SSH.
        Ssh(SshOutbound) = "ssh",
        /// Tor.
        Tor(TorOutbound) = "tor",
    }
}

impl Tagged<OutboundKind> {
    /// The server that it connects to, as `name:port`, if it is of a type that has one.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        let mut fields = Vec::new();
        self.kind.table().fields(&mut fields);
        let given = |key| fields.iter().find(|field| field.key == key).filter(|field| !field.value.is_zero());
        let name = given("server")?.value.encode();
        let name = name.as_str()?;
        let name = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
        let port = given("server_port").map(|port| format!(":{}", json::write_line(&port.value.encode())));
        Some(name + &port.unwrap_or_default())
    }
}
