//! `log`

use crate::table::options;
use crate::value::choices;

options! {
    /// What is logged, and where to.
    pub struct LogOptions {
        /// No output after the start.
        disabled: bool,
        /// The least important messages to show; all when absent.
        level: LogLevel,
        /// Path of a file, `stderr` (default) or `stdout`.
        output: String,
        /// Show the wall clock in place of the seconds since start.
        timestamp: bool,
    }
}

choices! {
    /// Importance of log messages.
    pub enum LogLevel: "log level" {
        /// Not set, which shows everything.
        Unset = "",
        /// Single packets.
        Trace = "trace",
        /// Why decisions fell.
        Debug = "debug",
        /// One line for each connection.
        Info = "info",
        /// An operator should look.
        Warn = "warn",
        /// The same as `warn`.
        Warning = "warning",
        /// Something failed.
        Error = "error",
        /// The program ends.
        Fatal = "fatal",
        /// The program ends by a fault of its own.
        Panic = "panic",
    }
}
