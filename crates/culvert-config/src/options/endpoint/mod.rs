//! `endpoints`: what is inbound and outbound at once; one file per type or group of types that share their options.

pub mod openconnect;
pub mod openvpn;
pub mod tailscale;
pub mod wireguard;

use openconnect::OpenConnectEndpoint;
use openvpn::{OpenVpnClientEndpoint, OpenVpnServerEndpoint};
use tailscale::TailscaleEndpoint;
use wireguard::WireGuardEndpoint;

use crate::table::kinds;

kinds! {
    /// The types of endpoint with their options.
    pub enum EndpointKind: "endpoint" in [Outbound, Endpoint, Inbound] {
        /// WireGuard.
        WireGuard(WireGuardEndpoint) = "wireguard",
        /// Tailscale.
        Tailscale(TailscaleEndpoint) = "tailscale",
        /// OpenVPN, on the side of the client.
        OpenVpnClient(OpenVpnClientEndpoint) = "openvpn-client",
        /// OpenVPN, on the side of the server.
        OpenVpnServer(OpenVpnServerEndpoint) = "openvpn-server",
        /// VPNs that OpenConnect speaks.
        OpenConnect(OpenConnectEndpoint) = "openconnect",
    }
}
