//! Services `usbip-server` and `usbip-client`: USB devices over the network.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::listen::ListenOptions;
use crate::table::options;
use crate::value::choices;

options! {
    /// Options of USB devices for others.
    pub struct UsbIpServerService {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Where the devices come from.
        provider: UsbIpProvider,
        /// Which devices others may use; for the default provider.
        devices: Vec<UsbDeviceMatch>,
    }
    check = UsbIpServerService::check_provider;

    /// Options of USB devices of others.
    pub struct UsbIpClientService {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server; port 3240 when absent.
        server: ServerOptions = ..,
        /// Which devices to use; all when absent.
        devices: Vec<UsbDeviceMatch>,
    }

    /// Devices by what they have; all that is given must fit.
    pub struct UsbDeviceMatch {
        /// Where a device is plugged in, such as `1-2`.
        bus_id: String,
        /// Number of the maker.
        vendor_id: u16,
        /// Number of the product.
        product_id: u16,
        /// Serial number.
        serial: String,
    }
}

choices! {
    /// Where USB devices come from.
    pub enum UsbIpProvider: "provider" {
        /// The system.
        Default = "default" | "",
        /// Programs that offer them while it runs.
        Dynamic = "dynamic",
    }
}

impl UsbIpServerService {
    fn check_provider(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.provider == UsbIpProvider::Dynamic && !self.devices.is_empty() {
            cx.error(node.place_of("devices"), "the `dynamic` provider has no option `devices`");
        }
    }
}
