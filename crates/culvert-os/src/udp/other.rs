//! Batches for systems where Culvert has no code for them yet.

use std::io;
use std::os::fd::BorrowedFd;

use super::{RecvSlot, SendSlot};

pub(super) fn recv(_: BorrowedFd<'_>, _: &mut [RecvSlot<'_>]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn send(_: BorrowedFd<'_>, _: &[SendSlot<'_>]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
