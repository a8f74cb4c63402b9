//! The smallest possible relays, as programs of their own: what is left of a proxy core when only the kernel works.
//!
//! They take the configuration of the `direct` protocol (`culvert-bench relay splice run -c FILE`), so that they run
//! and are measured exactly as the programs are. Each direction of a connection has a thread that blocks.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use culvert_os::splice::{Pipe, splice_in, splice_out};
use serde_json::Value;

use crate::failure::Failure;
use crate::programs::Program;

const COPY: usize = 256 * 1024;
const STACK: usize = 128 * 1024;

/// How bytes get from one socket to the other.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Mode {
    /// In the kernel, through a pipe.
    Splice,
    /// Read and written, 256 KiB at a time.
    Copy,
}

impl Mode {
    pub(crate) const ALL: [Self; 2] = [Self::Splice, Self::Copy];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Splice => "floor: splice relay",
            Self::Copy => "floor: copy relay",
        }
    }

    /// This very executable as a program to measure.
    pub(crate) fn program(self) -> Result<Program, Failure> {
        let word = match self {
            Self::Splice => "splice",
            Self::Copy => "copy",
        };
        Ok(Program {
            name: self.title().to_owned(),
            path: std::env::current_exe().map_err(Failure::io("cannot find this program"))?,
            arguments: vec!["relay".into(), word.into()],
            version: env!("CARGO_PKG_VERSION").into(),
        })
    }
}

/// Relays until it is killed.
pub(crate) fn run(mode: Mode, config: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(config).map_err(Failure::file("cannot read", config))?;
    let (listen, target) = ports(&text)
        .ok_or_else(|| Failure::Usage(format!("{}: no direct inbound with an override", config.display())))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, listen)).map_err(Failure::io("cannot listen"))?;
    loop {
        let connection = listener.accept().and_then(|(client, _)| {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
            relay(mode, &client, &server)
        });
        connection.map_err(Failure::io("cannot relay"))?;
    }
}

fn ports(config: &str) -> Option<(u16, u16)> {
    let config: Value = serde_json::from_str(config).ok()?;
    let inbound = &config["inbounds"][0];
    let port = |key: &str| u16::try_from(inbound[key].as_u64()?).ok();
    Some((port("listen_port")?, port("override_port")?))
}

fn relay(mode: Mode, client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    for (from, to) in [(client, server), (server, client)] {
        from.set_nodelay(true)?;
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let work = move || {
            // A broken connection ends this direction, and by the shutdown the other.
            let _ = match mode {
                Mode::Splice => splice(&from, &to),
                Mode::Copy => copy(&from, &to),
            };
            let _ = to.shutdown(Shutdown::Write);
            let _ = from.shutdown(Shutdown::Read);
        };
        thread::Builder::new().stack_size(STACK).spawn(work)?;
    }
    Ok(())
}

fn splice(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let mut pipe = Pipe::take()?;
    while splice_in(from.as_fd(), &mut pipe, usize::MAX >> 1)? > 0 {
        while !pipe.is_empty() {
            splice_out(&mut pipe, to.as_fd(), false)?;
        }
    }
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; COPY];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Seeds, exchange};

    #[test]
    fn ports_of_a_direct_inbound() {
        let config = r#"{"inbounds": [{"type": "direct", "listen_port": 1, "override_port": 2}]}"#;
        assert_eq!(ports(config), Some((1, 2)));
        assert_eq!(ports(r#"{"inbounds": [{"type": "socks", "listen_port": 1}]}"#), None);
    }

    #[test]
    fn both_relays_carry_bytes_both_ways() {
        for mode in Mode::ALL {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let pair = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
            let ((client, near), (far, server)) = (pair(), pair());
            relay(mode, &near, &far).unwrap();
            let target = thread::spawn(move || exchange(&server, Seeds::of_target(1), 3_000_000));
            assert_eq!(exchange(&client, Seeds::of_client(1), 3_000_000), Ok(()), "{mode:?}");
            assert_eq!(target.join().unwrap(), Ok(()), "{mode:?}");
        }
    }
}
