//! The program `culvert`; all of it is in the library, so that tests and embedders can use it too.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    culvert::cli::main()
}
