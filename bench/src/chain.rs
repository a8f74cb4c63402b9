//! Programs set up between the load generator's two ends: one program, or a client and a server program.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::Failure;
use crate::process::Process;
use crate::procfs::{CpuSample, Memory};
use crate::programs::Program;
use crate::protocols::{Entry, Protocol, Setup};
use crate::wire::{self, Header, Op, READY};

/// How long programs may take until the first connection goes through.
const START: Duration = Duration::from_secs(10);
/// One attempt at that.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long any step of setting up one connection may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who stands where in a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    /// How tables call it.
    pub(crate) name: String,
    pub(crate) client: Program,
    /// The second program, for protocols that need one.
    pub(crate) server: Program,
}

impl Contender {
    /// Each program with itself; with `cross` also each as client of each other.
    pub(crate) fn all(programs: &[Program], cross: bool) -> Vec<Self> {
        let alone = programs.iter().map(|program| Self {
            name: program.name.clone(),
            client: program.clone(),
            server: program.clone(),
        });
        let mut contenders: Vec<Self> = alone.collect();
        if cross {
            for client in programs {
                for server in programs.iter().filter(|server| *server != client) {
                    contenders.push(Self {
                        name: format!("{} → {}", client.name, server.name),
                        client: client.clone(),
                        server: server.clone(),
                    });
                }
            }
        }
        contenders
    }

    /// Whether one program plays both parts.
    pub(crate) fn is_pure(&self) -> bool {
        self.client == self.server
    }
}

/// Running programs, ready to carry connections. Dropping it ends them.
pub(crate) struct Chain {
    client: Process,
    server: Option<Process>,
    entry: Entry,
    entry_address: SocketAddr,
    target: SocketAddr,
}

/// Processor time of a chain's programs at one moment.
pub(crate) struct ChainCpu {
    client: CpuSample,
    server: Option<CpuSample>,
}

impl Chain {
    /// Writes the configurations to `folder`, starts the programs and waits until a connection goes through.
    pub(crate) fn start(
        folder: &Path,
        protocol: &Protocol,
        contender: &Contender,
        target: SocketAddr,
    ) -> Result<Self, Failure> {
        let chain = Self::spawn(folder, protocol, contender, target)?;
        chain.wait_until_ready()?;
        Ok(chain)
    }

    /// Starts the programs without waiting for them.
    pub(crate) fn spawn(
        folder: &Path,
        protocol: &Protocol,
        contender: &Contender,
        target: SocketAddr,
    ) -> Result<Self, Failure> {
        let setup = Setup { entry_port: free_port()?, server_port: free_port()?, target };
        let launch = |end: &str, program: &Program, config: &Value| {
            let file = folder.join(format!("{end}.json"));
            write_config(&file, config)?;
            let name = if protocol.has_server() {
                format!("{} ({end})", program.name)
            } else {
                program.name.clone()
            };
            Process::spawn(&name, &mut program.run(&file), &folder.join(format!("{end}.log")))
        };
        let server = protocol.server_config(&setup);
        let server = server.map(|config| launch("server", &contender.server, &config)).transpose()?;
        let client = launch("client", &contender.client, &protocol.client_config(&setup))?;
        let entry_address = SocketAddr::from((Ipv4Addr::LOCALHOST, setup.entry_port));
        Ok(Self { client, server, entry: protocol.entry, entry_address, target })
    }

    /// A connection through the programs to the target, ready for the target's header.
    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        connect(self.route())
    }

    /// What a thread needs to make connections of its own.
    pub(crate) fn route(&self) -> Route {
        Route {
            entry: self.entry,
            entry_address: self.entry_address,
            target: self.target,
            patience: PATIENCE,
        }
    }

    pub(crate) fn entry_address(&self) -> SocketAddr {
        self.entry_address
    }

    pub(crate) fn client_pid(&self) -> u32 {
        self.client.pid()
    }

    /// Fails once a program has ended.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.client.check()?;
        self.server.as_ref().map_or(Ok(()), Process::check)
    }

    pub(crate) fn cpu(&self) -> Result<ChainCpu, Failure> {
        let take = |process: &Process| CpuSample::take(process.pid()).ok_or_else(|| gone(process));
        Ok(ChainCpu { client: take(&self.client)?, server: self.server.as_ref().map(take).transpose()? })
    }

    /// Memory of the client and, where there is one, the server.
    pub(crate) fn memory(&self) -> Result<(Memory, Option<Memory>), Failure> {
        let read = |process: &Process| Memory::of(process.pid()).ok_or_else(|| gone(process));
        Ok((read(&self.client)?, self.server.as_ref().map(read).transpose()?))
    }

    fn wait_until_ready(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let error = match self.ping() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let gone = |process: &&Process| process.exited().is_some();
            let ended = self.server.iter().chain([&self.client]).find(gone);
            if ended.is_some() || begun.elapsed() > START {
                let waited =
                    format!("no connection came through in {} s, the last try: {error}", START.as_secs());
                return Err(ended.unwrap_or(&self.client).start_failure(&waited));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn ping(&self) -> io::Result<()> {
        let mut stream = connect(Route { patience: ATTEMPT, ..self.route() })?;
        stream.write_all(&Header { op: Op::Ping, stream: 0, length: 0 }.encode())?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        if answer == [READY] {
            Ok(())
        } else {
            Err(io::Error::other("the target's answer came back changed"))
        }
    }
}

impl ChainCpu {
    /// Processor time of client and server since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> (Duration, Option<Duration>) {
        let server = self.server.as_ref().zip(earlier.server.as_ref());
        (self.client.since(&earlier.client), server.map(|(later, earlier)| later.since(earlier)))
    }
}

/// How to make one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) entry: Entry,
    pub(crate) entry_address: SocketAddr,
    pub(crate) target: SocketAddr,
    /// How long each step may take; stays on the connection as its read timeout.
    pub(crate) patience: Duration,
}

/// Makes one connection; see [`Chain::connect`].
pub(crate) fn connect(route: Route) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&route.entry_address, route.patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(route.patience))?;
    if route.entry == Entry::Socks {
        wire::socks_connect(&mut stream, route.target)?;
    }
    Ok(stream)
}

/// A folder of this run's own, removed at the end.
pub(crate) struct WorkDir(PathBuf);

impl WorkDir {
    pub(crate) fn create() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("culvert-bench-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(Failure::file("cannot create", &path))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write_config(file: &Path, config: &Value) -> Result<(), Failure> {
    fs::write(file, format!("{config:#}\n")).map_err(Failure::file("cannot write", file))
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16, Failure> {
    let doing = "cannot find a free port";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::io(doing))?;
    Ok(listener.local_addr().map_err(Failure::io(doing))?.port())
}

fn gone(process: &Process) -> Failure {
    process.check().err().unwrap_or_else(|| process.start_failure("its /proc entry could not be read"))
}
