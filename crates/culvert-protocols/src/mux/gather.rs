//! What is to be written to a carrier, gathered from many frames so that one write takes them.

use culvert_wire::{Buf, BufChain, Room};

/// Pieces with the room around them that the carrier wants. Small ones share one.
pub(super) struct Gather {
    pieces: BufChain,
    /// The last piece, as long as more fits in.
    open: Option<Buf>,
    room: Room,
    /// What is taken for an open piece.
    size: usize,
}

/// Data up to here is copied to where the frames before it are: a piece of its own costs more.
pub(super) const SMALL: usize = 1 << 10;
/// What is taken for small frames.
const FRAMES: usize = 1536;
/// What is taken where everything is copied.
const COPIES: usize = 16 << 10;

impl Gather {
    /// For frames, most of which bring their own memory.
    pub(super) fn new(room: Room) -> Self {
        Self { pieces: BufChain::new(), open: None, room, size: FRAMES }
    }

    /// For bytes of all kinds.
    pub(super) fn of_copies(room: Room) -> Self {
        Self { size: COPIES, ..Self::new(room) }
    }

    pub(super) fn room(&self) -> Room {
        self.room
    }

    pub(super) fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len() + self.open.as_ref().map_or(0, |open| open.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn pieces(&self) -> usize {
        self.pieces.pieces()
    }

    /// Copies `bytes` to the end.
    pub(super) fn put(&mut self, mut bytes: &[u8]) {
        let Room { head, tail, max } = self.room;
        while !bytes.is_empty() {
            let size = self.size.max(bytes.len().min(COPIES)).min(max);
            let open = self.open.get_or_insert_with(|| Buf::new(size, head, tail));
            let fits = open.spare().saturating_sub(tail).min(max.saturating_sub(open.len()));
            let (now, later) = bytes.split_at(fits.min(bytes.len()));
            open.append(now);
            bytes = later;
            if !bytes.is_empty() {
                self.close();
            }
        }
    }

    /// Puts `head` and then `data` at the end, in one piece.
    pub(super) fn put_framed(&mut self, head: &[u8], mut data: Buf) {
        if data.len() <= SMALL {
            self.put(head);
            self.put(&data);
            return;
        }
        self.close();
        if data.head() < head.len() {
            let Room { head: before, tail, .. } = self.room;
            let mut copy = Buf::new(data.len(), head.len() + before, tail);
            copy.append(&data);
            data = copy;
        }
        data.prepend(head);
        self.pieces.push_back(data);
    }

    /// All of it, to be written.
    pub(super) fn whole(&mut self) -> &mut BufChain {
        self.close();
        &mut self.pieces
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.pieces.push_back(open);
        }
    }
}
