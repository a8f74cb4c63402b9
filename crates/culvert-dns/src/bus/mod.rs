//! As much of D-Bus as is needed to own a name on the system's bus and to answer calls there.
//!
//! ```text
//! client   NUL  AUTH EXTERNAL  DATA                     BEGIN     messages …
//! bus                                DATA  OK <guid>                messages …        lines end in CR LF
//! ```
//!
//! The user is who the kernel says it is. Source: the D-Bus specification 0.43. Left out: descriptors, other ways to authenticate, buses that are not Unix sockets.

pub mod message;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use message::{Kind, Message, Value};

/// Where the system's bus is, unless the environment says otherwise.
const SYSTEM: &str = "/var/run/dbus/system_bus_socket";
/// How long the bus may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most messages that come while an answer is waited for.
const MOST_WAITING: usize = 256;
/// The bus itself.
const BUS: [&str; 3] = ["org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus"];

/// A connection to a bus.
pub struct Bus {
    stream: UnixStream,
    /// What has come and was not read yet.
    come: Vec<u8>,
    serial: u32,
    waiting: VecDeque<Message>,
}

impl Bus {
    /// Connects to the system's bus: the one of `DBUS_SYSTEM_BUS_ADDRESS`, or where it usually is.
    ///
    /// # Errors
    /// There is none, or it does not want us.
    pub async fn system() -> io::Result<Self> {
        let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        let path = match address.as_str() {
            "" => PathBuf::from(SYSTEM),
            address => unix_path(address)
                .ok_or_else(|| invalid("DBUS_SYSTEM_BUS_ADDRESS names no Unix socket with a path"))?,
        };
        Self::connect(&path).await
    }

    /// Connects to the bus at this socket.
    ///
    /// # Errors
    /// Those of the socket, or the bus does not want us.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        timeout(PATIENCE, Self::begin(path)).await.map_err(|_| late())?
    }

    async fn begin(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path).await?;
        let mut bus = Self { stream, come: Vec::new(), serial: 0, waiting: VecDeque::new() };
        bus.stream.write_all(b"\0AUTH EXTERNAL\r\nDATA\r\n").await?;
        loop {
            let line = bus.line().await?;
            if line.starts_with(b"OK") {
                break;
            }
            if !line.starts_with(b"DATA") {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the bus does not take this user",
                ));
            }
        }
        bus.stream.write_all(b"BEGIN\r\n").await?;
        bus.call(BUS, "Hello", Vec::new()).await?;
        Ok(bus)
    }

    /// Takes a name. False if another program has it.
    ///
    /// # Errors
    /// Those of the connection, or the bus does not allow it.
    pub async fn own(&mut self, name: &str) -> io::Result<bool> {
        const DO_NOT_QUEUE: u32 = 4;
        const OWNER: i64 = 1;
        const IS_OWNER: i64 = 4;
        let arguments = vec![Value::text(name), Value::U32(DO_NOT_QUEUE)];
        let answer = self.call(BUS, "RequestName", arguments).await?;
        Ok(answer.first().and_then(Value::as_int).is_some_and(|code| code == OWNER || code == IS_OWNER))
    }

    /// Calls a method of `[destination, path, interface]`, and waits for what it returns.
    ///
    /// # Errors
    /// Those of the connection, or the error that it answers with.
    pub async fn call(
        &mut self,
        [destination, path, interface]: [&str; 3],
        method: &str,
        arguments: Vec<Value>,
    ) -> io::Result<Vec<Value>> {
        let serial = self
            .send(Message {
                path: path.to_owned(),
                interface: interface.to_owned(),
                member: method.to_owned(),
                destination: destination.to_owned(),
                body: arguments,
                ..Message::default()
            })
            .await?;
        let answer = async {
            loop {
                let message = self.read().await?;
                match message.kind {
                    Kind::Return if message.reply_to == serial => return Ok(message.body),
                    Kind::Error if message.reply_to == serial => {
                        let text = message.body.first().and_then(Value::as_text).unwrap_or_default();
                        return Err(io::Error::other(format!("{}: {text}", message.error)));
                    }
                    _ if self.waiting.len() < MOST_WAITING => self.waiting.push_back(message),
                    _ => {}
                }
            }
        };
        timeout(PATIENCE, answer).await.map_err(|_| late())?
    }

    /// The next message that is no answer to a call of ours.
    ///
    /// # Errors
    /// Those of the connection, or what came is no message.
    pub async fn next(&mut self) -> io::Result<Message> {
        match self.waiting.pop_front() {
            Some(message) => Ok(message),
            None => self.read().await,
        }
    }

    /// Sends a message, with a number of its own, which is returned.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn send(&mut self, message: Message) -> io::Result<u32> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let bytes = Message { serial: self.serial, ..message }.encode();
        self.stream.write_all(&bytes).await?;
        Ok(self.serial)
    }

    /// The next message. Giving up waiting for it loses nothing.
    async fn read(&mut self) -> io::Result<Message> {
        let no_message = || invalid("what came from the bus is no message");
        loop {
            let length = self.come.first_chunk().map(|head| Message::length(head).ok_or_else(no_message));
            if let Some(length) = length.transpose()?.filter(|length| *length <= self.come.len()) {
                let message = Message::decode(&self.come[..length]);
                self.come.drain(..length);
                return message.ok_or_else(no_message);
            }
            self.receive().await?;
        }
    }

    /// The next line of the handshake.
    async fn line(&mut self) -> io::Result<Vec<u8>> {
        const LONGEST: usize = 1024;
        loop {
            if let Some(end) = self.come.windows(2).position(|two| two == b"\r\n") {
                return Ok(self.come.drain(..end + 2).collect());
            }
            if self.come.len() > LONGEST {
                return Err(invalid("what came is no bus"));
            }
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.come).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn unix_path(address: &str) -> Option<PathBuf> {
    address.split(';').find_map(|one| {
        let (_, path) = one.strip_prefix("unix:")?.split(',').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key == "path").then_some((key, value))
        })?;
        Some(PathBuf::from(path))
    })
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the bus does not answer")
}
