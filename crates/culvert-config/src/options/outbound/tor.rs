//! Outbound `tor`.

use crate::options::dial::DialOptions;
use crate::table::options;
use crate::value::SortedMap;

options! {
    /// Options of a Tor outbound, which starts the program of that name.
    pub struct TorOutbound {
        /// How Tor dials.
        dial: DialOptions = ..,
        /// The program.
        executable_path: String,
        /// Further arguments for it.
        extra_args: Vec<String>,
        /// Where it keeps its data; a fresh directory when absent.
        data_directory: String,
        /// Lines of its configuration.
        torrc: SortedMap<String>,
    }
}
