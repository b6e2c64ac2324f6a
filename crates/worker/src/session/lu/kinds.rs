//! What a session of LU looks like from the outside: the same for columns in f32 and in f64.
//!
//! Place in the flow: the tasks of the links call it; the begin message says which type is behind it.
//!
//! Invariant: `LuBegin::decode` lets no type pass but f32 and f64.
//!
//! Deliberately absent: everything that depends on the type (`mod.rs`, `panels.rs`, `returning.rs`).

use super::{LuDone, LuOutput, TypedSession};
use crate::session::WorkerError;
use bramble_kernel::Kernel;
use bramble_kernel::lu::LuElement;
use bramble_link::Frame;
use bramble_matrix::DType;
use bramble_wire::message::{Kind, LuBegin};
use std::sync::Arc;

/// A factorisation at this worker, of elements of any type.
pub(in crate::session) trait LuSession {
    /// A message from the primary.
    fn message(&mut self, kind: Kind, head: &[u8], body: Option<&[u8]>) -> Result<LuOutput, WorkerError>;

    /// The result of a task.
    fn done(&mut self, done: LuDone) -> Result<LuOutput, WorkerError>;

    /// A frame of rows of the factors has left.
    fn sent_rows(&mut self);

    /// The workers to which this one may have something to send.
    fn peers(&self) -> [u32; 2];

    /// Checks the head of a panel frame from a neighbour, before its bytes are read.
    fn expects_panel(&self, peer: u32, head: &[u8], bytes: usize) -> Result<(), String>;

    /// Elements of a panel have come from a neighbour; they were checked when their head came.
    fn panel_bytes(&mut self, head: &[u8], bytes: &[u8]) -> Result<LuOutput, WorkerError>;

    /// The next machine has spent panels.
    fn spent(&mut self, peer: u32, head: &[u8]) -> Result<LuOutput, WorkerError>;

    /// The next frame to a neighbour, if there is one; the panel whose last elements it has.
    fn frame_to(&mut self, peer: u32) -> Option<(Frame, Option<usize>)>;

    /// A panel has been sent as a whole.
    fn passed(&mut self, step: usize) -> Result<LuOutput, WorkerError>;
}

/// Begins a factorisation with `threads` compute threads and at most `granted` bytes.
pub(super) fn begin(
    head: &[u8],
    kernel: Arc<dyn Kernel>,
    threads: usize,
    granted: u64,
) -> Result<(Box<dyn LuSession>, LuOutput), WorkerError> {
    let begin = LuBegin::decode(head)?;
    match begin.dtype {
        DType::F32 => boxed(TypedSession::<f32>::begin(begin, kernel, threads, granted)?),
        _ => boxed(TypedSession::<f64>::begin(begin, kernel, threads, granted)?),
    }
}

fn boxed<T: LuElement>(
    (session, out): (TypedSession<T>, LuOutput),
) -> Result<(Box<dyn LuSession>, LuOutput), WorkerError> {
    Ok((Box::new(session), out))
}
