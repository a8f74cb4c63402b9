//! What reads and writes a session's connection.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use culvert_core::conn::write_chain;
use culvert_core::{BoxStream, StreamConn, timeouts};
use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::Sleep;

use super::super::codec::{Command, Frame, Frames, Head, setting};
use super::super::padding::Scheme;
use super::{BROKEN, End, HALF_CLOSE, STREAMS, Shared, State, Stream, VERSION, copied, frame};

/// How data is asked for: in pieces of one record each, with space around for what most streams go on to. A frame of ours
/// is a record, so its data goes on in the memory that the cipher wrote it to.
const ROOM: Room = Room { head: 64, tail: 64, max: 16 << 10 };

/// Reads after which other tasks have their turn.
const BUDGET: usize = 32;

/// Why a session ends before its time.
#[derive(Debug)]
pub(in super::super) enum Fault {
    /// The connection broke or ended.
    Io(io::Error),
    /// The peer does not keep to the protocol, and is told so in these words.
    Protocol(&'static str),
    /// The peer ends it, in its own words.
    Alert(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => f.write_str("peer closed it"),
            Self::Io(error) => error.fmt(f),
            Self::Protocol(what) => f.write_str(what),
            Self::Alert(text) => write!(f, "peer says: {text}"),
        }
    }
}

/// Reads and writes a session's connection. Whoever has it polls it until it is ready, then lets it [end](Driver::end).
pub(in super::super) struct Driver {
    conn: BoxStream,
    shared: Arc<Shared>,
    frames: Frames,
    writing: Writing,
    role: Role,
}

enum Role {
    Server {
        scheme: Arc<Scheme>,
        /// The client has sent its settings.
        settled: bool,
        /// Opened by the client and not served yet.
        opened: Vec<Stream>,
    },
    Client {
        /// Given a new scheme when the server sends one.
        learn: Box<dyn Fn(Arc<Scheme>) + Send>,
        /// Runs while the server owes an answer.
        patience: Option<Pin<Box<Sleep>>>,
    },
}

/// What is on its way to the connection.
#[derive(Default)]
struct Writing {
    current: BufChain,
    /// Each is a record of its own, behind `current`.
    records: VecDeque<BufChain>,
    /// Whose data it is.
    of: Vec<u32>,
    /// `current` was given to the connection, which may hold it still.
    busy: bool,
    unflushed: bool,
    /// Of a client: the scheme, and the number of the next packet.
    padding: Option<(Arc<Scheme>, u32)>,
}

impl Driver {
    /// The server's end, behind the login; `early` is what was read too far.
    pub(in super::super) fn server(conn: BoxStream, early: BufChain, scheme: Arc<Scheme>) -> Self {
        let role = Role::Server { scheme, settled: false, opened: Vec::new() };
        let mut driver = Self::new(conn, Writing::default(), role);
        driver.frames.take_in(early);
        driver
    }

    /// The client's end. `login` goes first, as it is; what follows is padded by `scheme`. What the server wants in its
    /// place is given to `learn`.
    pub(in super::super) fn client(
        conn: BoxStream,
        login: BufChain,
        scheme: Arc<Scheme>,
        learn: impl Fn(Arc<Scheme>) + Send + 'static,
    ) -> Self {
        let writing =
            Writing { current: login, busy: true, padding: Some((scheme, 1)), ..Writing::default() };
        Self::new(conn, writing, Role::Client { learn: Box::new(learn), patience: None })
    }

    fn new(conn: BoxStream, writing: Writing, role: Role) -> Self {
        let shared = Shared::new(conn.room());
        Self { conn, shared, frames: Frames::default(), writing, role }
    }

    /// What it shares with the streams.
    pub(in super::super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Of a server: streams that clients have opened since the last call.
    pub(in super::super) fn take_opened(&mut self) -> Vec<Stream> {
        match &mut self.role {
            Role::Server { opened, .. } => std::mem::take(opened),
            Role::Client { .. } => Vec::new(),
        }
    }

    /// Whether there are no streams.
    pub(in super::super) fn is_idle(&self) -> bool {
        self.shared.lock().streams.is_empty()
    }

    /// Moves what can be moved. Ready when the session is over.
    pub(in super::super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.shared.lock().note_driver(cx);
        if let Poll::Ready(outcome) = self.poll_read(cx) {
            return Poll::Ready(outcome);
        }
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            return Poll::Ready(Err(error.into()));
        }
        self.poll_patience(cx)
    }

    /// Tells the peer that it is over, as far as that goes, and wakes all streams.
    pub(in super::super) async fn end(mut self, outcome: &Result<(), Fault>) {
        let why = outcome.as_ref().err().map_or_else(|| "closed".to_owned(), Fault::to_string);
        self.shared.lock().end(why.as_str().into());
        self.shared.heard.notify_waiters();
        let saying = async {
            match outcome {
                // A batch of which a part is written cannot be cut short.
                Ok(()) if !self.writing.busy => {}
                Err(Fault::Protocol(what)) if !self.writing.busy => {
                    let mut alert = Vec::new();
                    frame(Command::Alert, 0, what.as_bytes(), &mut alert);
                    let _ = write_chain(&mut self.conn, &mut BufChain::copied(&alert)).await;
                }
                Err(Fault::Alert(_)) if !self.writing.busy => {}
                _ => return,
            }
            let _ = self.conn.shutdown().await;
        };
        let _ = tokio::time::timeout(timeouts::GOODBYE, saying).await;
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.writing.busy {
                ready!(self.conn.poll_write_chain(cx, &mut self.writing.current))?;
                self.writing.unflushed = true;
                match self.writing.records.pop_front() {
                    Some(next) => self.writing.current = next,
                    None => self.writing.busy = false,
                }
            }
            let mut state = self.shared.lock();
            for stream in self.writing.of.drain(..) {
                if let Some(slot) = state.streams.get_mut(&stream) {
                    slot.queued = false;
                    if let Some(writer) = slot.writer.take() {
                        writer.wake();
                    }
                }
            }
            if state.out.is_empty() {
                break;
            }
            self.writing.take(&mut state, self.shared.room);
            state.resume();
        }
        if self.writing.unflushed {
            ready!(Pin::new(&mut self.conn).poll_flush(cx))?;
            self.writing.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads for as long as somebody waits for it. Ready when there is an end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        for _ in 0..BUDGET {
            self.digest()?;
            {
                let mut state = self.shared.lock();
                if state.ending {
                    return Poll::Ready(Ok(()));
                }
                state.paused = !state.may_read();
                if state.paused {
                    return Poll::Pending; // whoever changes that wakes us
                }
            }
            let read = ready!(self.conn.poll_read_chain(cx, ROOM))?;
            if read.is_empty() {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
            self.frames.take_in(read);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Acts on what was read.
    fn digest(&mut self) -> Result<(), Fault> {
        let Self { shared, frames, role, writing, .. } = self;
        let mut state = shared.lock();
        while state.may_take_in()
            && let Some(frame) = frames.next_frame()
        {
            if std::mem::take(&mut state.owed) {
                shared.heard.notify_waiters();
            }
            match frame {
                Frame::Data { stream, data } => state.deliver(stream, data),
                Frame::Control { head, data } => match head.command {
                    Command::Finish if state.peer.half_close && data == BROKEN => {
                        state.end_stream(head.stream, End::Broken);
                    }
                    Command::Finish => state.end_stream(head.stream, End::Finished),
                    Command::HeartRequest => state.reply(Command::HeartResponse, head.stream, &[]),
                    _ => role.act(shared, &mut state, writing, head, &data)?,
                },
            }
        }
        Ok(())
    }

    /// A server that owes an answer for too long is gone.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let Role::Client { patience, .. } = &mut self.role else { return Poll::Pending };
        if !self.shared.lock().owed {
            *patience = None;
            return Poll::Pending;
        }
        let timer = patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeouts::SESSION_ANSWER)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer").into()))
    }
}

/// Nobody serves the session any more.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.lock().end("stopped".into());
        self.shared.heard.notify_waiters();
    }
}

impl Role {
    /// Acts on a frame that only one of the two ends gets.
    fn act(
        &mut self,
        shared: &Arc<Shared>,
        state: &mut State,
        writing: &mut Writing,
        head: Head,
        data: &[u8],
    ) -> Result<(), Fault> {
        match self {
            Self::Server { scheme, settled, opened } => match head.command {
                Command::Settings => {
                    *settled = true;
                    if setting(data, "padding-md5") != Some(scheme.md5()) {
                        state.reply(Command::UpdatePadding, 0, scheme.text().as_bytes());
                    }
                    state.learn(data);
                    if state.peer.version >= VERSION {
                        let settings = format!("v={VERSION}\n{HALF_CLOSE}=1");
                        let settings = if state.peer.half_close { settings } else { format!("v={VERSION}") };
                        state.reply(Command::ServerSettings, 0, settings.as_bytes());
                    }
                }
                Command::Open if !*settled => {
                    return Err(Fault::Protocol("client did not send its settings"));
                }
                Command::Open if state.streams.contains_key(&head.stream) => {}
                Command::Open if state.streams.len() >= STREAMS => {
                    if state.peer.version >= VERSION {
                        state.reply(Command::Opened, head.stream, b"too many streams");
                    }
                    state.reply(Command::Finish, head.stream, &[]);
                }
                Command::Open => {
                    state.streams.insert(head.stream, super::Slot::default());
                    opened.push(Stream::answering(Arc::clone(shared), head.stream));
                }
                _ => {}
            },
            Self::Client { learn, .. } => match head.command {
                Command::ServerSettings => {
                    state.learn(data);
                    // Ends of which it was not known how to tell them.
                    let shut = state.streams.iter().filter(|(_, slot)| slot.shut).map(|(id, _)| *id);
                    let shut: Vec<u32> = if state.peer.half_close { shut.collect() } else { Vec::new() };
                    shut.into_iter().for_each(|stream| state.finish(stream));
                }
                Command::Opened if !data.is_empty() => {
                    state.end_stream(head.stream, End::Refused(readable(data).into()));
                }
                Command::UpdatePadding => {
                    if let Some(scheme) = std::str::from_utf8(data).ok().and_then(Scheme::parse) {
                        let scheme = Arc::new(scheme);
                        if let Some((current, _)) = &mut writing.padding {
                            *current = Arc::clone(&scheme);
                        }
                        learn(scheme);
                    }
                }
                Command::Alert => return Err(Fault::Alert(readable(data))),
                _ => {}
            },
        }
        Ok(())
    }
}

impl State {
    /// What the peer says it can do.
    fn learn(&mut self, settings: &[u8]) {
        if let Some(version) = setting(settings, "v").and_then(|version| version.parse().ok()) {
            self.peer.version = version;
        }
        self.peer.half_close |= self.peer.version >= VERSION && setting(settings, HALF_CLOSE) == Some("1");
    }
}

impl Writing {
    /// Takes all packets there are: each cut and filled up as the scheme says, or all in one.
    fn take(&mut self, state: &mut State, room: Room) {
        state.replies = 0;
        if self.padding.as_ref().is_some_and(|(scheme, number)| scheme.has_stopped(*number)) {
            self.padding = None; // for good
        }
        for mut packet in state.out.drain(..) {
            self.of.extend(packet.of);
            match &mut self.padding {
                Some((scheme, number)) if !scheme.has_stopped(*number) => {
                    // What a layer below gets in one piece it makes one record.
                    let whole = |record: BufChain| match record.len() {
                        len if len <= room.max => copied(&record.to_vec(), room).into(),
                        _ => record,
                    };
                    self.records.extend(scheme.apply(*number, packet.frames).into_iter().map(whole));
                    *number += 1;
                }
                _ if self.records.is_empty() => self.current.append(&mut packet.frames),
                _ => self.records.push_back(packet.frames),
            }
        }
        if state.out.capacity() > 64 {
            state.out = VecDeque::new();
        }
        self.busy = true;
    }
}

/// The peer's words, fit for a log.
fn readable(text: &[u8]) -> String {
    const MOST: usize = 200;
    String::from_utf8_lossy(text).chars().filter(|letter| !letter.is_control()).take(MOST).collect()
}
