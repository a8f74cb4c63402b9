//! A row of the tables brought to life: an origin, one program or two, and ways to dial through them.

use crate::Side;
use culvert_testkit::client::{self, Association, ClientError, Credentials, Protocol, Target};
use culvert_testkit::origin::{Origin, Service};
use culvert_testkit::peer::{Peer, Program};
use culvert_testkit::ports::Port;
use culvert_testkit::{Error, Result};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// The user whom every row with credentials knows: in Base64 it holds `+` and `/`, and the password a colon.
pub(crate) const USER: (&str, &str) = ("al?ce>~", "s3cret:\u{fc}~~?");

/// Longest a single step through the programs may take.
pub(crate) const STEP: Duration = Duration::from_secs(20);

/// How often a link is checked whose client locks itself up.
const ATTEMPTS: usize = 4;

/// Why a link is checked once more: sing-box 1.14.4 as a client of h2mux stands still for good now and then, with its own
/// server too, since two functions of its HTTP/2 library (golang.org/x/net 0.57, `ClientConn.state` and
/// `ClientConn.stateHook`) wait for each other's lock.
#[derive(Debug)]
pub(crate) struct LockedUp;

impl std::fmt::Display for LockedUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sing-box has locked itself up")
    }
}

impl std::error::Error for LockedUp {}

/// What a path can carry besides TCP to an IPv4 address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carries {
    pub(crate) udp: bool,
    pub(crate) names: bool,
    pub(crate) v6: bool,
    /// The client says where it wants to go; else the path leads to the origin alone.
    pub(crate) any_target: bool,
    /// The reference program passes on half-closes; of the program under test that is demanded always.
    pub(crate) half_close: bool,
    /// A stream that breaks off can be told from one that ends.
    pub(crate) resets: bool,
    /// Longest datagram that the reference program carries; the program under test carries all, where the protocol has
    /// no limit of its own.
    pub(crate) datagram: usize,
    /// The reference program ends an association that idles; else only when a datagram of another comes.
    pub(crate) forgets: bool,
    /// The protocol itself has no end of one direction.
    pub(crate) one_end: bool,
}

/// TCP and UDP to any target.
pub(crate) const ALL: Carries = Carries {
    udp: true,
    names: true,
    v6: true,
    any_target: true,
    half_close: true,
    resets: true,
    // sing-box cuts them at 16 KiB less their headers.
    datagram: 16_000,
    forgets: true,
    one_end: false,
};
/// The same, but in the reference program the end of one direction is the end of both.
pub(crate) const ENDS_TOGETHER: Carries = Carries { half_close: false, ..ALL };
/// TCP to any target.
pub(crate) const TCP: Carries = Carries { udp: false, ..ALL };
/// TCP to IPv4 addresses, and to names.
pub(crate) const TCP_V4: Carries = Carries { v6: false, ..TCP };

/// A way into the first program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry {
    /// The test's own client speaks this protocol to an inbound of this type.
    Proxy { inbound: &'static str, protocol: Protocol, users: bool },
    /// Everything that comes is sent to the origin.
    Direct,
}

impl Entry {
    pub(crate) const fn new(inbound: &'static str, protocol: Protocol) -> Self {
        Self::Proxy { inbound, protocol, users: false }
    }

    pub(crate) const fn with_users(inbound: &'static str, protocol: Protocol) -> Self {
        Self::Proxy { inbound, protocol, users: true }
    }

    fn carries(self) -> Carries {
        match self {
            Self::Proxy { protocol: Protocol::Socks5, .. } => ALL,
            Self::Proxy { protocol: Protocol::Http, .. } => TCP,
            Self::Proxy { protocol: Protocol::Socks4a, .. } => TCP_V4,
            Self::Proxy { protocol: Protocol::Socks4, .. } => Carries { names: false, ..TCP_V4 },
            Self::Direct => Carries { names: false, v6: false, any_target: false, forgets: false, ..ALL },
        }
    }
}

/// A protocol between two programs. The harness adds tags, addresses and ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// The outbound of the client.
    pub(crate) outbound: fn() -> Value,
    /// The inbound of the server.
    pub(crate) inbound: fn() -> Value,
    pub(crate) carries: Carries,
    /// Only the checks that show that the layers fit together; for combinations of what other rows check in full.
    pub(crate) light: bool,
}

/// Running programs with an origin behind them.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) origin: Origin,
    pub(crate) peers: Vec<Peer>,
    entry: Entry,
    carries: Carries,
    /// Where the test's client enters.
    port: Port,
    /// Where it enters for the server that speaks first, with [`Entry::Direct`].
    banner_port: Port,
    /// Descriptors of each program before the first connection.
    idle_descriptors: Vec<usize>,
    /// Every program is the one under test, so all that it promises can be demanded.
    strict: bool,
    light: bool,
    /// The client is one that may lock itself up.
    fragile: bool,
}

impl Site {
    /// One program that goes straight to the origin.
    pub(crate) async fn alone(entry: Entry, program: &Program) -> Result<Self> {
        Self::build(entry, entry.carries(), &[program], |entry_inbounds| {
            vec![json!({ "inbounds": entry_inbounds, "outbounds": [{ "type": "direct", "tag": "out" }] })]
        })
        .await
    }

    /// Two programs with a link between; the test's client enters by SOCKS5.
    pub(crate) async fn linked(link: &Link, client: &Program, server: &Program) -> Result<Self> {
        let site = Self::linked_by((link.outbound)(), (link.inbound)(), link.carries, client, server).await?;
        Ok(Self { light: link.light, ..site })
    }

    /// [`linked`](Self::linked) with the options given as they are.
    pub(crate) async fn linked_by(
        mut outbound: Value,
        mut inbound: Value,
        carries: Carries,
        client: &Program,
        server: &Program,
    ) -> Result<Self> {
        let between = Port::reserve()?;
        let entry = Entry::new("mixed", Protocol::Socks5);
        outbound["tag"] = "out".into();
        outbound["server"] = "127.0.0.1".into();
        outbound["server_port"] = between.number().into();
        if outbound.get("server_ports").is_some() {
            // There is no firewall here that leads other ports to this one: hops are between sockets.
            outbound["server_ports"] = json!([format!("{0}:{0}", between.number())]);
        }
        let fragile = client.name() == "sing-box" && outbound["multiplex"]["protocol"] == "h2mux";
        inbound["tag"] = "in".into();
        inbound["listen"] = "127.0.0.1".into();
        inbound["listen_port"] = between.number().into();
        let site = Self::build(entry, carries, &[client, server], |entry_inbounds| {
            vec![
                json!({ "inbounds": entry_inbounds, "outbounds": [outbound] }),
                json!({ "inbounds": [inbound], "outbounds": [{ "type": "direct", "tag": "out" }] }),
            ]
        })
        .await?;
        Ok(Self { fragile, ..site })
    }

    /// Programs that run already, into which the test's client enters by SOCKS5 at `port`. They are checked lightly.
    pub(crate) fn running(origin: Origin, port: Port, peers: Vec<Peer>, carries: Carries) -> Result<Self> {
        let (entry, banner_port) = (Entry::new("mixed", Protocol::Socks5), Port::reserve()?);
        let idle_descriptors = descriptors(&peers)?;
        let (strict, light, fragile) = (false, true, false);
        Ok(Self {
            origin,
            peers,
            entry,
            carries,
            port,
            banner_port,
            idle_descriptors,
            strict,
            light,
            fragile,
        })
    }

    async fn build(
        entry: Entry,
        carries: Carries,
        programs: &[&Program],
        configs: impl FnOnce(Value) -> Vec<Value>,
    ) -> Result<Self> {
        let origin = Origin::start().await?;
        let (port, banner_port) = (Port::reserve()?, Port::reserve()?);
        let mut peers = Vec::new();
        for (program, mut config) in
            programs.iter().zip(configs(inbounds(entry, &port, &banner_port, &origin)))
        {
            config["log"] = json!({ "level": "debug", "timestamp": false });
            peers.push(program.serve(&config).await?);
        }
        let idle_descriptors = descriptors(&peers)?;
        let strict = programs.iter().all(|program| program.name() == "culvert");
        let (light, fragile) = (false, false);
        Ok(Self {
            origin,
            peers,
            entry,
            carries,
            port,
            banner_port,
            idle_descriptors,
            strict,
            light,
            fragile,
        })
    }

    /// Whether the client may be [`LockedUp`] where a check fails.
    pub(crate) fn fragile(&self) -> bool {
        self.fragile
    }

    /// Ends the client, and looks where it stood.
    pub(crate) async fn is_locked_up(&self) -> Result<bool> {
        let client = self.peers.first().ok_or("no client")?;
        client.signal("QUIT").await?;
        let hook = "golang.org/x/net/http2.(*ClientConn).stateHook(";
        Ok(client.log().line(|line| line.starts_with(hook)).await.is_ok())
    }

    /// The same, to be checked lightly.
    pub(crate) fn lightly(self) -> Self {
        Self { light: true, ..self }
    }

    pub(crate) fn carries(&self) -> Carries {
        self.carries
    }

    pub(crate) fn strict(&self) -> bool {
        self.strict
    }

    pub(crate) fn light(&self) -> bool {
        self.light
    }

    /// Whether the way in asks for a user.
    pub(crate) fn has_users(&self) -> bool {
        matches!(self.entry, Entry::Proxy { users: true, .. })
    }

    /// Opens a stream to the target through the programs.
    pub(crate) async fn dial(&self, target: &Target) -> Result<TcpStream, ClientError> {
        self.dial_as(self.credentials(), target).await
    }

    /// [`dial`](Self::dial) as somebody else, or as nobody.
    pub(crate) async fn dial_as(
        &self,
        credentials: Credentials<'_>,
        target: &Target,
    ) -> Result<TcpStream, ClientError> {
        let dialing = async {
            match self.entry {
                Entry::Proxy { protocol, .. } => {
                    client::connect(protocol, self.port.v4(), credentials, target).await
                }
                Entry::Direct if target.port() == self.origin.banner_port().number() => {
                    Ok(TcpStream::connect(self.banner_port.v4()).await?)
                }
                Entry::Direct => Ok(TcpStream::connect(self.port.v4()).await?),
            }
        };
        let late = |_| ClientError::Io(std::io::ErrorKind::TimedOut.into());
        tokio::time::timeout(STEP, dialing).await.map_err(late)?
    }

    /// Sends the whole handshake and the first data in one write, and reads the answers afterwards.
    pub(crate) async fn dial_with_early_data(&self, target: &Target, data: &str) -> Result<TcpStream> {
        let Entry::Proxy { protocol, .. } = self.entry else { return Err("no handshake".into()) };
        let (credentials, user) = (self.credentials(), self.credentials().map_or("", |(user, _)| user));
        let mut bytes = match protocol {
            Protocol::Socks4 | Protocol::Socks4a => client::socks4_request_bytes(user.as_bytes(), target),
            Protocol::Socks5 => {
                let mut bytes = client::socks5_greeting_bytes(credentials).to_vec();
                if let Some((user, password)) = credentials {
                    bytes.extend(client::socks5_password_bytes(user, password));
                }
                bytes.extend(client::socks5_request_bytes(client::CONNECT, target));
                bytes
            }
            Protocol::Http => client::http_connect_bytes(credentials, target),
        };
        bytes.extend(data.as_bytes());
        let mut stream = TcpStream::connect(self.port.v4()).await?;
        stream.write_all(&bytes).await?;
        match protocol {
            Protocol::Socks4 | Protocol::Socks4a => drop(client::socks4_reply(&mut stream).await?),
            Protocol::Socks5 => {
                let mut answers = [0; 4];
                let length = if credentials.is_some() { 4 } else { 2 };
                stream.read_exact(&mut answers[..length]).await?;
                drop(client::socks5_reply(&mut stream).await?);
            }
            Protocol::Http => client::http_connect_reply(&mut stream).await?,
        }
        Ok(stream)
    }

    /// Opens a stream to the origin and asks for a service.
    pub(crate) async fn ask(&self, service: Service) -> Result<TcpStream> {
        let mut stream = self.dial(&self.origin.port().v4().into()).await?;
        stream.write_all(service.line().as_bytes()).await?;
        Ok(stream)
    }

    /// Opens a way for datagrams.
    pub(crate) async fn associate(&self) -> Result<Datagrams> {
        Ok(match self.entry {
            Entry::Proxy { .. } => {
                Datagrams::Associated(Association::open(self.port.v4(), self.credentials()).await?)
            }
            Entry::Direct => {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                socket.connect(self.port.v4()).await?;
                Datagrams::Plain(socket, self.origin.port().v4())
            }
        })
    }

    fn credentials(&self) -> Credentials<'static> {
        match self.entry {
            // SOCKS4 knows users without passwords only; the row's user for it has an empty one.
            Entry::Proxy { users: true, protocol: Protocol::Socks4 | Protocol::Socks4a, .. } => {
                Some(("dave", ""))
            }
            Entry::Proxy { users: true, .. } => Some(USER),
            _ => None,
        }
    }

    /// Waits until the programs hold no more descriptors than before the first connection, then stops them.
    pub(crate) async fn close(mut self) -> Result {
        // What a runtime opens once, on first use.
        const ALLOWANCE: usize = 8;
        let deadline = tokio::time::Instant::now() + STEP;
        loop {
            let now = descriptors(&self.peers)?;
            let closed = now.iter().zip(&self.idle_descriptors).all(|(now, idle)| *now <= idle + ALLOWANCE);
            if closed || !(self.carries.forgets || self.strict) {
                break;
            }
            if tokio::time::Instant::now() > deadline {
                return Err(
                    format!("descriptors stay open: {:?}, then {now:?}", self.idle_descriptors).into()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for peer in &mut self.peers {
            let status = peer.stop().await?;
            if status.code() != Some(0) {
                return Err(format!("{} stopped with {status}", peer.program().name()).into());
            }
        }
        Ok(())
    }
}

fn descriptors(peers: &[Peer]) -> Result<Vec<usize>> {
    peers.iter().map(|peer| Ok(peer.usage()?.descriptors)).collect()
}

fn inbounds(entry: Entry, port: &Port, banner_port: &Port, origin: &Origin) -> Value {
    match entry {
        Entry::Proxy { inbound, users, .. } => {
            let (name, password) = USER;
            let mut inbound = json!({ "type": inbound, "tag": "entry", "listen": "127.0.0.1", "listen_port": port.number() });
            if users {
                inbound["users"] = json!([
                    { "username": "bob", "password": "another" },
                    { "username": name, "password": password },
                    { "username": "dave", "password": "" }
                ]);
            }
            json!([inbound])
        }
        Entry::Direct => {
            let inbound = |tag, port: &Port, to: &Port| {
                json!({
                    "type": "direct", "tag": tag, "listen": "127.0.0.1", "listen_port": port.number(),
                    "override_address": "127.0.0.1", "override_port": to.number(),
                    // Nothing but time ends an association without a control connection.
                    "udp_timeout": "2s"
                })
            };
            json!([
                inbound("entry", port, origin.port()),
                inbound("banner", banner_port, origin.banner_port())
            ])
        }
    }
}

/// A way for datagrams through the programs.
#[derive(Debug)]
pub(crate) enum Datagrams {
    /// By SOCKS5.
    Associated(Association),
    /// To one target, which is where answers come from.
    Plain(UdpSocket, SocketAddr),
}

impl Datagrams {
    pub(crate) async fn send_to(&self, target: &Target, data: &[u8]) -> Result {
        match self {
            Self::Associated(association) => association.send_to(target, data).await?,
            Self::Plain(socket, _) => socket.send(data).await.map(drop)?,
        }
        Ok(())
    }

    /// Waits for a datagram: whom it is from, and its data.
    pub(crate) async fn recv(&self) -> Result<(Target, Vec<u8>)> {
        let receiving = async {
            match self {
                Self::Associated(association) => Ok(association.recv().await?),
                Self::Plain(socket, from) => {
                    let mut buffer = vec![0; 65_536];
                    let length = socket.recv(&mut buffer).await?;
                    buffer.truncate(length);
                    Ok(((*from).into(), buffer))
                }
            }
        };
        tokio::time::timeout(STEP, receiving).await.map_err(|_| Error::from("no datagram came back"))?
    }
}

/// Runs one program with a way in, or two with a link, through all checks.
pub(crate) async fn alone(entry: Entry, side: Side) -> Result {
    let Some(program) = side.program() else { return Ok(()) };
    crate::checks::all(Site::alone(entry, &program).await?).await
}

/// Runs a client and a server through all checks, then with wrong credentials where the link has some.
pub(crate) async fn linked(link: Link, client: Side, server: Side) -> Result {
    let (Some(client), Some(server)) = (client.program(), server.program()) else { return Ok(()) };
    for attempt in 1.. {
        match crate::checks::all(Site::linked(&link, &client, &server).await?).await {
            Err(error) if error.is::<LockedUp>() && attempt < ATTEMPTS => eprintln!("{error}: once more"),
            outcome => {
                outcome?;
                break;
            }
        }
    }

    if link.light {
        return Ok(());
    }
    let mut outbound = (link.outbound)();
    // Passwords of the 2022 edition of Shadowsocks are keys.
    let is_key = outbound["method"].as_str().is_some_and(|method| method.starts_with("2022"));
    let wrong = if is_key { "//////////////////////==" } else { "wrong" };
    for (key, wrong) in
        [("password", wrong), ("username", "mallory"), ("uuid", "7a2b8f53-6f2c-4a4e-9d0c-000000000000")]
    {
        if outbound.get(key).is_some() {
            outbound[key] = wrong.into();
            let site = Site::linked_by(outbound, (link.inbound)(), link.carries, &client, &server).await?;
            crate::checks::is_refused(&site).await.map_err(|error| format!("with a wrong {key}: {error}"))?;
            return Ok(());
        }
    }
    Ok(())
}
