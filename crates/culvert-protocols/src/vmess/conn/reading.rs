//! The half of a connection that opens.

use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};

use crate::vmess::cfb::Cfb;
use crate::vmess::chunk::{Direction, Fault, Form, Opener};
use crate::vmess::codec::{Request, Security, open_response};

/// Parts of chunks in more memory than this move to memory of their own.
const SNUG: usize = 17 << 10;
/// Most payload that is put together, as much as the largest memory of the pool takes.
const LONGEST: usize = 256 << 10;
/// A response header with a full command, encrypted either way.
const MAX_ANSWER: usize = 512;
const MAX_LENGTH: usize = 18;

/// The response header that a client waits for, and what it asked for.
pub(crate) struct Answer {
    pub(crate) request: Request,
    /// The header is the legacy one.
    pub(crate) legacy: bool,
}

impl Answer {
    /// Reads the answer off the front of `raw` and returns the form of the body behind it; `None` if there is too little.
    fn read(&self, raw: &mut BufChain) -> Result<Option<Form<Opener>>, Fault> {
        let mut window = [0; MAX_ANSWER];
        let seen = raw.peek(&mut window);
        let keys = self.request.keys.clone();
        let (answer, keys, used, cfb) = if self.legacy {
            let keys = keys.legacy_response();
            let mut cfb = Cfb::new(&keys);
            let Some(header) = window.first_chunk_mut::<4>().filter(|_| seen >= 4) else { return Ok(None) };
            cfb.decrypt(header);
            let [check, _, _, command] = *header;
            if check != self.request.check {
                return Err(Fault::Answer);
            }
            let used = 4 + usize::from(command);
            if seen < used {
                return Ok(None);
            }
            cfb.decrypt(&mut window[4..used]);
            (check, keys, used, Some(Box::new(cfb)))
        } else {
            let keys = keys.response();
            let mut r = Reader::new(&window[..seen]);
            match open_response(&mut r, &keys) {
                Ok(check) => (check, keys, r.position(), None),
                Err(DecodeError::Incomplete) => return Ok(None),
                Err(DecodeError::Invalid(_)) => return Err(Fault::Answer),
            }
        };
        if answer != self.request.check {
            return Err(Fault::Answer);
        }
        raw.advance(used);
        let cfb = cfb.filter(|_| self.request.security == Security::Aes128Cfb);
        Ok(Some(Direction { request: &self.request, keys: &keys, cfb }.opening()))
    }
}

enum State {
    /// The answer comes first.
    Answer(Box<Answer>),
    Body(Form<Opener>),
    Ended,
    Failed,
}

/// Takes bytes in and gives payload out.
pub(crate) struct Reading {
    state: State,
    /// Read and not opened, decrypted where all of the stream is. Where there are chunks it is, after [`Reading::open`],
    /// empty or the beginning of one.
    raw: BufChain,
    /// Bytes of padding still to come.
    skip: usize,
    /// What will be reported once the payload in front of it is taken.
    later: Option<Fault>,
}

impl Reading {
    /// A client's: the answer comes first.
    pub(crate) fn answer(answer: Answer) -> Self {
        Self::new(State::Answer(Box::new(answer)))
    }

    /// A server's: `read` was read behind the request's header.
    pub(crate) fn body(form: Form<Opener>, read: BufChain) -> Self {
        let mut reading = Self::new(State::Body(form));
        reading.take_in(read);
        reading
    }

    fn new(state: State) -> Self {
        Self { state, raw: BufChain::new(), skip: 0, later: None }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Whether bytes come as they are from now on, but for those taken in.
    pub(crate) fn is_raw(&self) -> bool {
        matches!(self.state, State::Body(Form::Raw))
    }

    /// Whether there is nothing between the holder and the lower stream.
    pub(crate) fn is_transparent(&self) -> bool {
        self.is_raw() && self.raw.is_empty() && self.later.is_none()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The room that bytes to be taken in should have, where payload is to have `room`.
    pub(crate) fn wanted_room(&self, room: Room) -> Room {
        match self.state {
            State::Body(Form::Stream(_)) => room,
            _ => Room::NONE,
        }
    }

    /// The lower stream has ended. A server that had nothing to say may not even have answered.
    pub(crate) fn end_of_lower(&mut self) -> Result<(), Fault> {
        let is_inside = match &self.state {
            State::Body(Form::Chunks(opener)) => opener.body().is_some() || self.skip > 0,
            _ => false,
        };
        if is_inside || !self.raw.is_empty() {
            self.state = State::Failed;
            return Err(Fault::Cut);
        }
        self.state = State::Ended;
        Ok(())
    }

    /// Takes bytes in from the lower stream: first they complete the chunk of which a part is held.
    pub(crate) fn take_in(&mut self, more: BufChain) {
        let mut more = match &mut self.state {
            State::Body(Form::Stream(cfb)) => mapped(more, |bytes| cfb.decrypt(bytes)),
            State::Body(Form::Chunks(opener)) if opener.decrypts() => {
                mapped(more, |bytes| opener.decrypt(bytes))
            }
            _ => more,
        };
        if let State::Body(Form::Chunks(opener)) = &self.state
            && let Some(body) = opener.body()
            && self.raw.pieces() == 1
            && let Some(mut part) = self.raw.pop_front()
        {
            let mut missing = body.saturating_sub(part.len()).min(part.spare());
            while missing > 0 && !more.is_empty() {
                let front = more.front();
                let count = front.len().min(missing);
                part.append(&front[..count]);
                more.advance(count);
                missing -= count;
            }
            self.raw.push_back(part);
        }
        self.raw.append(&mut more);
    }

    /// Opens all that was taken in and is whole. An empty chain without an error means that more must come, or the end.
    ///
    /// Payload in front of a fault comes out first, and the fault with the next call.
    pub(crate) fn open(&mut self, room: Room) -> Result<BufChain, Fault> {
        let mut opened = BufChain::new();
        let outcome = match self.later.take() {
            Some(fault) => Err(fault),
            None => self.open_all(room, &mut opened),
        };
        match outcome {
            Ok(()) => Ok(opened),
            Err(fault) if !opened.is_empty() => {
                self.later = Some(fault);
                Ok(opened)
            }
            Err(fault) => {
                self.fail();
                Err(fault)
            }
        }
    }

    /// What is whole already; a fault waits for the next call that can tell it.
    pub(crate) fn open_early(&mut self) -> BufChain {
        self.open(Room::NONE).unwrap_or_else(|fault| {
            self.later = Some(fault);
            BufChain::new()
        })
    }

    /// Opens one chunk, which is one datagram, with `room` around it. `None` means that more must come, or the end. Empty
    /// ones are read over: with them some say that there are no more.
    pub(crate) fn open_datagram(&mut self, room: Room) -> Result<Option<Buf>, Fault> {
        let outcome = self.open_one(room);
        if outcome.is_err() {
            self.fail();
        }
        outcome
    }

    fn open_one(&mut self, room: Room) -> Result<Option<Buf>, Fault> {
        self.begin()?;
        while let Some(body) = self.next_chunk()? {
            let datagram = self.open_apart(body, room)?;
            if !datagram.is_empty() {
                return Ok(Some(datagram));
            }
        }
        self.keep_part(room);
        Ok(None)
    }

    fn open_all(&mut self, room: Room, opened: &mut BufChain) -> Result<(), Fault> {
        self.begin()?;
        match &self.state {
            State::Answer(_) => {}
            State::Body(Form::Raw | Form::Stream(_)) => opened.append(&mut self.raw),
            State::Body(Form::Chunks(_)) => self.open_chunks(room, opened)?,
            State::Ended => self.raw = BufChain::new(),
            State::Failed => return Err(Fault::Failed),
        }
        Ok(())
    }

    /// Reads the answer, where it has come and is waited for.
    fn begin(&mut self) -> Result<(), Fault> {
        if let State::Answer(answer) = &self.state
            && let Some(form) = answer.read(&mut self.raw)?
        {
            self.state = State::Body(form);
            let read = std::mem::take(&mut self.raw);
            self.take_in(read);
        }
        Ok(())
    }

    fn open_chunks(&mut self, room: Room, opened: &mut BufChain) -> Result<(), Fault> {
        let mut joined = Joined { room, current: None };
        let outcome = self.open_whole(room, &mut joined, opened);
        opened.extend(joined.current);
        if outcome.is_ok() && !self.raw.is_empty() {
            self.keep_part(room);
        }
        outcome
    }

    fn open_whole(&mut self, room: Room, joined: &mut Joined, opened: &mut BufChain) -> Result<(), Fault> {
        while let Some(body) = self.next_chunk()? {
            let State::Body(Form::Chunks(opener)) = &mut self.state else { return Ok(()) };
            let space = body - opener.overhead();
            if space == 0 {
                self.open_apart(body, Room::NONE)?;
                self.raw = BufChain::new();
                self.state = State::Ended;
                return Ok(());
            }
            let front = self.raw.front();
            if front.len() > body || (front.len() == body && joined.current.is_some()) {
                let expected = self.raw.len();
                let to = joined.with_space(space, expected, opened);
                opener.open_into(&front[..body], &mut to.spare_mut()[..space])?;
                to.grow(space);
                self.skip = opener.take_padding();
                self.raw.advance(body);
            } else {
                opened.extend(joined.current.take());
                opened.push_back(self.open_apart(body, room)?);
            }
        }
        Ok(())
    }

    /// Bytes of the body at the front, if it is whole.
    fn next_chunk(&mut self) -> Result<Option<usize>, Fault> {
        let skipped = self.skip.min(self.raw.len());
        self.raw.advance(skipped);
        self.skip -= skipped;
        let State::Body(Form::Chunks(opener)) = &mut self.state else { return Ok(None) };
        if self.skip > 0 {
            return Ok(None);
        }
        let body = match opener.body() {
            Some(body) => body,
            None => {
                let mut field = [0; MAX_LENGTH];
                let field = &mut field[..opener.length_len()];
                if self.raw.peek(field) < field.len() {
                    return Ok(None);
                }
                self.raw.advance(field.len());
                opener.read_length(field)?
            }
        };
        Ok((self.raw.len() >= body).then_some(body))
    }

    /// Opens the body at the front into a piece of its own: the one it lies in, where it is alone there.
    fn open_apart(&mut self, body: usize, room: Room) -> Result<Buf, Fault> {
        let State::Body(Form::Chunks(opener)) = &mut self.state else { return Err(Fault::Failed) };
        let first = self.raw.iter().next();
        let is_alone = first.is_some_and(|piece| piece.len() == body && has_room(piece, room));
        let piece = if self.raw.front().len() >= body && !is_alone {
            let space = body - opener.overhead();
            let mut to = Buf::new(space, room.head, room.tail);
            opener.open_into(&self.raw.front()[..body], &mut to.spare_mut()[..space])?;
            to.grow(space);
            self.raw.advance(body);
            to
        } else {
            let mut piece = gathered(&mut self.raw, body, room);
            let payload = opener.open(&mut piece)?;
            piece.truncate(payload.end);
            piece.advance(payload.start);
            piece
        };
        self.skip = opener.take_padding();
        Ok(piece)
    }

    /// Keeps the beginning of a chunk while the rest is awaited: in memory that the rest fits into, and no more than that.
    fn keep_part(&mut self, room: Room) {
        let State::Body(Form::Chunks(opener)) = &self.state else { return };
        let whole = opener.body().unwrap_or(opener.length_len());
        let is_snug = |piece: &Buf| piece.head() + piece.len() + piece.spare() <= SNUG;
        let fits = |piece: &Buf| is_snug(piece) && piece.len() + piece.spare() >= whole + room.tail;
        if self.raw.is_empty() || (self.raw.pieces() == 1 && self.raw.iter().all(fits)) {
            return;
        }
        let mut part = Buf::new(whole, room.head, room.tail);
        self.raw.iter().for_each(|piece| part.append(piece));
        self.raw = part.into();
    }

    fn fail(&mut self) {
        self.state = State::Failed;
        self.raw = BufChain::new();
    }
}

/// Where the payload of several chunks is put together.
struct Joined {
    room: Room,
    current: Option<Buf>,
}

impl Joined {
    /// A piece whose spare takes `space` bytes and leaves the tail that is wanted. About `expected` bytes will come in all.
    fn with_space(&mut self, space: usize, expected: usize, opened: &mut BufChain) -> &mut Buf {
        let Room { head, tail, max } = self.room;
        let is_full = |piece: &mut Buf| piece.spare() < space + tail || piece.len() + space > max;
        opened.extend(self.current.take_if(is_full));
        let capacity = expected.min(max).min(LONGEST).max(space);
        self.current.get_or_insert_with(|| Buf::new(capacity, head, tail))
    }
}

/// The first `count` bytes in one piece, which is the first one if that is as long.
fn gathered(raw: &mut BufChain, count: usize, room: Room) -> Buf {
    if raw.front().len() == count
        && let Some(piece) = raw.pop_front()
    {
        return piece;
    }
    let mut piece = Buf::new(count, room.head, room.tail);
    while piece.len() < count {
        let front = raw.front();
        let part = front.len().min(count - piece.len());
        piece.append(&front[..part]);
        raw.advance(part);
    }
    piece
}

/// Whether the payload in `piece` will have the room that the holder wants; what is around it becomes room.
fn has_room(piece: &Buf, room: Room) -> bool {
    piece.head() >= room.head && piece.spare() >= room.tail
}

fn mapped(chain: BufChain, mut map: impl FnMut(&mut [u8])) -> BufChain {
    let mut chain = chain;
    let mut mapped = BufChain::new();
    while let Some(mut piece) = chain.pop_front() {
        map(&mut piece);
        mapped.push_back(piece);
    }
    mapped
}
