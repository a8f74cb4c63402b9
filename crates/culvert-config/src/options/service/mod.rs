//! `services`: one file per type or group of types that share their options.

pub mod api;
pub mod derp;
pub mod memory;
pub mod proxy;
pub mod realm;
pub mod resolved;
pub mod ssm;
pub mod usbip;

use api::ApiService;
use derp::DerpService;
use memory::OomKillerService;
use proxy::{CcmService, OcmService};
use realm::HysteriaRealmService;
use resolved::ResolvedService;
use ssm::SsmApiService;
use usbip::{UsbIpClientService, UsbIpServerService};

use crate::table::kinds;

kinds! {
    /// The types of service with their options.
    pub enum ServiceKind: "service" in [Service] {
        /// gRPC interface to this program.
        Api(ApiService) = "api",
        /// Stand-in for systemd-resolved.
        Resolved(ResolvedService) = "resolved",
        /// Management of Shadowsocks users.
        SsmApi(SsmApiService) = "ssm-api",
        /// Meeting point for Hysteria 2.
        HysteriaRealm(HysteriaRealmService) = "hysteria-realm",
        /// Ends connections when memory runs short.
        OomKiller(OomKillerService) = "oom-killer",
        /// Relay for Tailscale.
        Derp(DerpService) = "derp",
        /// Proxy to Claude Code with shared credentials.
        Ccm(CcmService) = "ccm",
        /// Proxy to OpenAI Codex with shared credentials.
        Ocm(OcmService) = "ocm",
        /// USB devices for others.
        UsbIpServer(UsbIpServerService) = "usbip-server",
        /// USB devices of others.
        UsbIpClient(UsbIpClientService) = "usbip-client",
    }
}
