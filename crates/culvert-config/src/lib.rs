//! sing-box configuration files to typed options, with every mistake told by file, line, column, path and tag.
//!
//! ```text
//! text ──json──▶ tree with places ──merge──▶ one tree ──legacy──▶ current dialect ──options──▶ Options
//!                                                                                   └──check──▶ findings
//! ```
//!
//! [`load()`] does all of it; [`format()`], [`migrate()`], [`merge()`] and [`schema()`] are the commands of that name.
//!
//! # How to add
//!
//! * **An option**: one line in its table, with a doc comment that says unit and default. Tables stand in
//!   `src/options/`, in canonical order; the syntax is explained at the top of `src/table.rs`. Decoding, unknown-key
//!   hints, `format` and the schema follow from the line. The type of the field decides which forms are accepted:
//!   see `src/value/`. `Option<T>` where an explicit zero differs from absence, `List<T>` where one value may stand
//!   for a list, `Secret<T>` around what logs must not show, `choices!` for one of a few words (inside `Word<T>` if
//!   sing-box takes any word while the option has no effect), `Typed<K>` for an object of one of several types, a tag
//!   type from `src/value/tag.rs` for the name of another object (it is then resolved by `check` without further work).
//! * **A type** of inbound, outbound, endpoint, DNS server, service ...: its table in a file of its own, and one line in
//!   the `kinds!` list of that section.
//! * **A check** of one object: `check = Type::function;` behind the table, a `fn(&self, &Node, &mut Cx)` that calls
//!   `cx.error(node.place_of("key"), "...")`. It runs only when all fields were decoded, and not for `format`. Files
//!   are read through `cx.read_file`. A check across objects belongs into `src/check/`.
//! * **An old spelling**: a rewrite of the tree in `src/legacy/`, with one warning that shows the new spelling.
//!
//! # Where sing-box 1.14.4 decides otherwise
//!
//! * What its `run` refuses without looking at the machine, [`load()`] refuses as well: references to nothing, cycles,
//!   words such as the stack of TUN that its `check` does not read.
//! * Old dialects are accepted, see `src/legacy/`.
//! * `network` written as a list of both protocols is printed as nothing, which means the same. sing-box prints a text
//!   that it refuses to read.
//! * Keys in another letter case are accepted in a few objects more than there, with a warning; values of a key that is
//!   written again later are not looked at.
//! * An id of VMess or VLESS that is empty or nothing but zeros is an error.
//! * An error comes with all others, and a warning never changes the outcome.
//!
//! Not part of this crate: anything that opens a port or needs a running system.
#![forbid(unsafe_code)]

mod check;
mod cx;
mod diagnostics;
mod format;
mod json;
mod legacy;
mod load;
mod merge;
mod nearest;
pub mod options;
mod schema;
mod source;
mod table;
pub mod value;

pub use cx::{Files, SystemFiles};
pub use diagnostics::{Diagnostic, Diagnostics, Severity};
pub use format::{format, format_with_report, migrate};
pub use load::{Loaded, load, load_with, place_of, schema};
pub use merge::{merge, merge_with};
pub use options::Options;
pub use source::Source;
pub use table::{KindOf, Tagged};
