//! Programs set up between the load generator's two ends: one program, or a client and a server program.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::adapters;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::network::{self, Network};
use crate::process::Process;
use crate::procfs::{CpuSample, Memory};
use crate::programs::{End, Program};
use crate::protocols::{Entry, Inner, Protocol, Setup};
use crate::relay::Reference;
use crate::target::Target;
use crate::wire::{self, Header, Op, READY};

/// How long programs may take until the first connection goes through.
const START: Duration = Duration::from_secs(10);
/// One attempt at that.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long any step of setting up one connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a protocol is told of a path without a bottleneck, in Mbit/s.
const UNLIMITED: u32 = 10_000;

/// Where the target is and what lies between the two ends' programs.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The target as the server's program sees it, or the only program.
    pub(crate) target: SocketAddr,
    /// With two namespaces the server's program is in the far one, and so is the target.
    pub(crate) network: Option<&'a Network>,
    /// Mbit/s that a protocol may be told.
    pub(crate) bandwidth: u32,
}

impl<'a> Place<'a> {
    /// All on one loopback.
    pub(crate) fn here(target: &Target) -> Self {
        Self { target: target.address(), network: None, bandwidth: UNLIMITED }
    }

    /// In two namespaces.
    pub(crate) fn apart(target: &Target, network: &'a Network) -> Self {
        Self { target: target.address(), network: Some(network), bandwidth: UNLIMITED }
    }

    fn at_server<T: Send>(&self, work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
        match self.network {
            Some(network) => network.far(work)?,
            None => work(),
        }
    }
}

/// Who stands where in a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    /// How tables call it.
    pub(crate) name: String,
    part: Part,
}

#[derive(Clone, Debug)]
enum Part {
    /// One program, as both ends where a protocol has two.
    Alone(Program),
    /// Two programs, one at each end.
    Pair { client: Program, server: Program },
    /// What kernel and cipher cost: relays of our own.
    Floor(Reference),
    /// No program: the load generator's two ends talk to each other.
    Nothing,
}

impl Contender {
    /// Each program with itself; with `cross` also each as client of each other.
    pub(crate) fn all(programs: &[Program], cross: bool) -> Vec<Self> {
        let alone =
            |program: &Program| Self { name: program.name.clone(), part: Part::Alone(program.clone()) };
        let mut contenders: Vec<Self> = programs.iter().map(alone).collect();
        if cross {
            for client in programs {
                for server in programs.iter().filter(|server| *server != client) {
                    let name = format!("{} → {}", client.name, server.name);
                    let part = Part::Pair { client: client.clone(), server: server.clone() };
                    contenders.push(Self { name, part });
                }
            }
        }
        contenders
    }

    /// The least that any program can cost here: relays of our own.
    pub(crate) fn floor() -> Vec<Self> {
        let contender = |part: Reference| Self { name: part.title().into(), part: Part::Floor(part) };
        Reference::ALL.map(contender).to_vec()
    }

    /// The load generator's ends without a program in between, beside every protocol.
    pub(crate) fn nothing() -> Self {
        Self { name: "no program".into(), part: Part::Nothing }
    }

    /// Whether it can take part in a protocol's rows.
    pub(crate) fn fits(&self, protocol: &Protocol) -> bool {
        match &self.part {
            Part::Alone(program) => takes(program, protocol),
            Part::Pair { client, server } => {
                protocol.has_server() && takes(client, protocol) && takes(server, protocol)
            }
            Part::Floor(reference) => reference.fits(protocol.floor),
            Part::Nothing => true,
        }
    }

    /// Whether it only shows what is possible.
    pub(crate) fn is_reference(&self) -> bool {
        matches!(self.part, Part::Floor(_) | Part::Nothing)
    }

    /// Client and server program of a protocol's rows; the second one is left alone where it needs one only.
    fn programs(&self, protocol: &Protocol) -> Result<Option<[Program; 2]>, Failure> {
        Ok(match &self.part {
            Part::Alone(program) => Some([program.clone(), program.clone()]),
            Part::Pair { client, server } => Some([client.clone(), server.clone()]),
            Part::Floor(reference) => Some(reference.programs(protocol.floor)?),
            Part::Nothing => None,
        })
    }
}

/// Running programs, ready to carry connections. Dropping it ends them.
pub(crate) struct Chain {
    client: Option<Process>,
    server: Option<Process>,
    route: Route,
    /// What its streams carry.
    inner: Inner,
    /// Just before the client program was started.
    began: Instant,
}

/// Whether there is a configuration of the protocol for the program.
fn takes(program: &Program, protocol: &Protocol) -> bool {
    config_of(program, protocol, End::Client, &Setup::example()).is_some()
}

fn config_of(program: &Program, protocol: &Protocol, end: End, setup: &Setup) -> Option<Value> {
    if !program.is_universal() {
        return adapters::config(program.kind, protocol.name, end, setup);
    }
    match end {
        End::Client => Some(protocol.client_config(setup)),
        End::Server => protocol.server_config(setup),
    }
}

/// One value for each end, where a program stands there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerEnd<T> {
    pub(crate) client: Option<T>,
    pub(crate) server: Option<T>,
}

impl<T> PerEnd<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.client.iter().chain(&self.server)
    }
}

impl Chain {
    /// Writes the configurations to `folder`, starts the programs and waits until a connection goes through.
    pub(crate) fn start(
        folder: &Path,
        protocol: &Protocol,
        contender: &Contender,
        place: &Place<'_>,
    ) -> Result<Self, Failure> {
        let chain = Self::spawn(folder, protocol, contender, place)?;
        chain.wait_until_ready()?;
        Ok(chain)
    }

    /// Starts the programs without waiting for them.
    pub(crate) fn spawn(
        folder: &Path,
        protocol: &Protocol,
        contender: &Contender,
        place: &Place<'_>,
    ) -> Result<Self, Failure> {
        let identity = Identity::create(folder)?;
        let [server_port, inner_port] = place.at_server(|| Ok([free_port()?, free_port()?]))?;
        let (target, bandwidth) = (place.target, place.bandwidth);
        let server = place.network.map_or(Ipv4Addr::LOCALHOST, |_| network::FAR);
        let entry_port = free_port()?;
        let setup = Setup { entry_port, server, server_port, inner_port, target, bandwidth, identity };
        let Some([client, server]) = contender.programs(protocol)? else {
            let route = Route { entry: Entry::Plain, entry_address: target, target, patience: PATIENCE };
            let inner = protocol.inner;
            return Ok(Self { client: None, server: None, route, inner, began: Instant::now() });
        };
        let (entry, configs) = match contender.part {
            Part::Floor(_) => {
                let (client, server) = protocol.relay_configs(&setup);
                (Entry::Plain, (Some(client), server))
            }
            _ => {
                let config = |program: &Program, end| config_of(program, protocol, end, &setup);
                (protocol.entry, (config(&client, End::Client), config(&server, End::Server)))
            }
        };
        let launch = |end: End, program: &Program, config: &Value| {
            let file = folder.join(format!("{}.json", end.name()));
            fs::write(&file, format!("{config:#}\n")).map_err(Failure::file("cannot write", &file))?;
            let name = if protocol.has_server() {
                format!("{} ({})", program.name, end.name())
            } else {
                program.name.clone()
            };
            let log = folder.join(format!("{}.log", end.name()));
            Process::spawn(&name, &mut program.run_as(end, &file), &log)
        };
        let server = match configs.1 {
            Some(config) => Some(place.at_server(|| launch(End::Server, &server, &config))?),
            None => None,
        };
        let Some(config) = configs.0 else {
            return Err(Failure::Usage(format!("{} takes no part in {}", client.name, protocol.name)));
        };
        let began = Instant::now();
        let client = Some(launch(End::Client, &client, &config)?);
        let entry_address = SocketAddr::from((Ipv4Addr::LOCALHOST, setup.entry_port));
        let route = Route { entry, entry_address, target: protocol.asked_for(target), patience: PATIENCE };
        Ok(Self { client, server, route, inner: protocol.inner, began })
    }

    /// Programs that were started otherwise, and the way through them.
    pub(crate) fn around(client: Process, server: Option<Process>, entry_address: SocketAddr) -> Self {
        let route = Route { entry: Entry::Plain, entry_address, target: entry_address, patience: PATIENCE };
        Self { client: Some(client), server, route, inner: Inner::Plain, began: Instant::now() }
    }

    /// A program with a SOCKS inbound that leads whatever is asked for by this name to the target.
    pub(crate) fn through_socks(client: Process, port: u16, target: &Target, name: &'static str) -> Self {
        let entry_address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let chain = Self::around(client, None, entry_address);
        let route = Route { entry: Entry::SocksName(name), target: target.address(), ..chain.route };
        Self { route, ..chain }
    }

    /// A connection through the programs to the target, ready for the target's header.
    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        self.route.connect()
    }

    pub(crate) fn inner(&self) -> Inner {
        self.inner
    }

    /// What a thread needs to make connections of its own.
    pub(crate) fn route(&self) -> Route {
        self.route
    }

    /// How long the client program took from its start until it accepted a connection, found by trying without a pause
    /// to speak of.
    pub(crate) fn time_to_listen(&self) -> Result<Duration, Failure> {
        loop {
            if TcpStream::connect(self.route.entry_address).is_ok() {
                return Ok(self.began.elapsed());
            }
            self.check()?;
            if let Some(client) = self.client.as_ref().filter(|_| self.began.elapsed() > START) {
                return Err(client.start_failure(&format!("it did not listen within {} s", START.as_secs())));
            }
            thread::sleep(Duration::from_micros(20));
        }
    }

    /// Fails once a program has ended.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.processes().try_for_each(Process::check)
    }

    pub(crate) fn cpu(&self) -> Result<PerEnd<CpuSample>, Failure> {
        self.per_end(|process| CpuSample::take(process.pid()))
    }

    pub(crate) fn memory(&self) -> Result<PerEnd<Memory>, Failure> {
        self.per_end(|process| Memory::of(process.pid()))
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.server.iter().chain(&self.client)
    }

    fn per_end<T>(&self, read: impl Fn(&Process) -> Option<T>) -> Result<PerEnd<T>, Failure> {
        let read = |process: &Process| {
            let gone = || process.check().err().unwrap_or_else(|| process.start_failure("it left /proc"));
            read(process).ok_or_else(gone)
        };
        Ok(PerEnd {
            client: self.client.as_ref().map(read).transpose()?,
            server: self.server.as_ref().map(read).transpose()?,
        })
    }

    /// Waits until a connection goes through.
    pub(crate) fn wait_until_ready(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let Err(error) = self.ping() else { return Ok(()) };
            let ended = self.processes().find(|process| process.exited().is_some());
            let waited =
                format!("no connection came through in {} s, the last try: {error}", START.as_secs());
            if let Some(process) = ended {
                return Err(process.start_failure(&waited));
            }
            if begun.elapsed() > START {
                let client = self.client.as_ref().map(|client| client.start_failure(&waited));
                return Err(client.unwrap_or(Failure::Usage(waited)));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn ping(&self) -> io::Result<()> {
        let mut stream = Route { patience: ATTEMPT, ..self.route }.connect()?;
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

impl PerEnd<CpuSample> {
    /// Processor time of client and server since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> PerEnd<Duration> {
        let difference = |later: &Option<CpuSample>, earlier: &Option<CpuSample>| {
            later.as_ref().zip(earlier.as_ref()).map(|(later, earlier)| later.since(earlier))
        };
        PerEnd {
            client: difference(&self.client, &earlier.client),
            server: difference(&self.server, &earlier.server),
        }
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

impl Route {
    /// Makes one connection; see [`Chain::connect`].
    pub(crate) fn connect(self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.entry_address, self.patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.patience))?;
        match self.entry {
            Entry::Socks => wire::socks_connect(&mut stream, self.target)?,
            Entry::SocksName(name) => wire::socks_connect_name(&mut stream, name, self.target.port())?,
            Entry::Plain => {}
        }
        Ok(stream)
    }
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

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16, Failure> {
    let doing = "cannot find a free port";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::io(doing))?;
    Ok(listener.local_addr().map_err(Failure::io(doing))?.port())
}
