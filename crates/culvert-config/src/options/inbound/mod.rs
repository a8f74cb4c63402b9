//! `inbounds`: one file per type or group of types that share their options.

pub mod anytls;
pub mod cloudflared;
pub mod direct;
pub mod hysteria;
pub mod mixed;
pub mod naive;
pub mod shadowsocks;
pub mod shadowtls;
pub mod snell;
pub mod transparent;
pub mod tuic;
pub mod tun;
pub mod vmess;

use anytls::AnyTlsInbound;
use cloudflared::CloudflaredInbound;
use direct::DirectInbound;
use hysteria::{Hysteria2Inbound, HysteriaInbound};
use mixed::{HttpInbound, MixedInbound, SocksInbound};
use naive::NaiveInbound;
use shadowsocks::ShadowsocksInbound;
use shadowtls::ShadowTlsInbound;
use snell::SnellInbound;
use transparent::{RedirectInbound, TproxyInbound};
use tuic::TuicInbound;
use tun::TunInbound;
use vmess::{TrojanInbound, VlessInbound, VmessInbound};

use crate::table::kinds;

kinds! {
    /// The types of inbound with their options.
    pub enum InboundKind: "inbound" in [Inbound] {
        /// Everything to one fixed destination.
        Direct(DirectInbound) = "direct",
        /// SOCKS and HTTP on one port.
        Mixed(MixedInbound) = "mixed",
        /// SOCKS 4, 4a and 5.
        Socks(SocksInbound) = "socks",
        /// HTTP proxy.
        Http(HttpInbound) = "http",
        /// Shadowsocks.
        Shadowsocks(ShadowsocksInbound) = "shadowsocks",
        /// VMess.
        Vmess(VmessInbound) = "vmess",
        /// VLESS.
        Vless(VlessInbound) = "vless",
        /// Trojan.
        Trojan(TrojanInbound) = "trojan",
        /// Naive.
        Naive(NaiveInbound) = "naive",
        /// Hysteria.
        Hysteria(HysteriaInbound) = "hysteria",
        /// Hysteria 2.
        Hysteria2(Hysteria2Inbound) = "hysteria2",
        /// TUIC.
        Tuic(TuicInbound) = "tuic",
        /// ShadowTLS.
        ShadowTls(ShadowTlsInbound) = "shadowtls",
        /// AnyTLS.
        AnyTls(AnyTlsInbound) = "anytls",
        /// Snell.
        Snell(SnellInbound) = "snell",
        /// TCP connections the firewall diverts.
        Redirect(RedirectInbound) = "redirect",
        /// Connections the firewall diverts.
        Tproxy(TproxyInbound) = "tproxy",
        /// Packets of a network interface.
        Tun(TunInbound) = "tun",
        /// A Cloudflare tunnel.
        Cloudflared(CloudflaredInbound) = "cloudflared",
    }
}
