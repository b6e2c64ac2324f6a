//! Panels of a factorisation at this worker: as they come from the worker before this one, and as they go to the next.
//!
//! Place in the flow: the tasks of the links with neighbours ask here before they read a frame, pass its bytes in, and
//! take the frames that they send.
//!
//! Invariants: elements of a panel come in order and are passed on in order, while the rest still comes. Only the worker before
//! this one may send panels, and only the next one may report spent panels.

use super::{LuOutput, TypedSession};
use crate::session::WorkerError;
use bramble_kernel::lu::{LuElement, PackedPanel};
use bramble_link::{Body, Frame, SharedRegion};
use bramble_matrix::make_room_in_huge_pages;
use bramble_matrix::number::to_u64;
use bramble_schedule::lu::LuEvent;
use bramble_wire::ProtocolError;
use bramble_wire::limits::{CHUNK_BYTES_MAX, LU_FRAME_BYTES};
use bramble_wire::message::{Kind, LuPanelHead, decode_number, encode_number};
use std::sync::Arc;

/// A panel at this machine.
pub(super) enum PanelHere<T> {
    /// Some of its elements have come.
    Arriving {
        elements: Vec<T>,
        come: usize,
        pivots: Vec<usize>,
    },
    Whole(Arc<PackedPanel<T>>),
}

/// Bytes of a panel that are sent, as a link reads them.
struct PanelBytes<T>(Arc<PackedPanel<T>>);

impl<T: LuElement> AsRef<[u8]> for PanelBytes<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.elements())
    }
}

/// Elements that are sent.
pub(super) struct ElementBytes<T>(pub(super) Vec<T>);

impl<T: LuElement> AsRef<[u8]> for ElementBytes<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Copies the bytes of a body to elements; false if their number differs.
pub(super) fn copy_bytes<T: LuElement>(bytes: &[u8], to: &mut [T]) -> bool {
    let to: &mut [u8] = bytemuck::cast_slice_mut(to);
    let fits = to.len() == bytes.len();
    if fits {
        to.copy_from_slice(bytes);
    }
    fits
}

impl<T: LuElement> TypedSession<T> {
    /// The worker of this number is the next one of the ring, or the one before.
    fn is_next(&self, peer: u32) -> bool {
        u32::try_from(self.begin.ring.next()) == Ok(peer)
    }

    fn is_previous(&self, peer: u32) -> bool {
        u32::try_from(self.begin.ring.previous()) == Ok(peer)
    }

    /// The workers to which this one may have something to send.
    pub(super) fn neighbours(&self) -> [u32; 2] {
        [self.begin.ring.next(), self.begin.ring.previous()]
            .map(|peer| u32::try_from(peer).unwrap_or(u32::MAX))
    }

    /// Takes back the memory of panels that are spent.
    pub(super) fn forget(&mut self, count: usize) {
        let kept = self.panels.split_off(&count);
        for (_, panel) in std::mem::replace(&mut self.panels, kept) {
            if let PanelHere::Whole(panel) = panel
                && let Some(panel) = Arc::into_inner(panel)
            {
                self.spare.push(panel.into_memory());
            }
        }
    }

    /// Checks the head of a panel frame from a neighbour, before its bytes are read.
    pub(super) fn check_panel(&self, peer: u32, head: &[u8], bytes: usize) -> Result<(), String> {
        let head = LuPanelHead::decode(head).map_err(|e| e.0)?;
        let come = match self.panels.get(&head.step) {
            Some(PanelHere::Arriving { come, .. }) => Some(*come),
            Some(PanelHere::Whole(_)) => None,
            None => Some(0),
        };
        let is_step = head.step < self.begin.panels();
        let all = if is_step { self.part.panel_elements(head.step) } else { 0 };
        let fits = bytes.is_multiple_of(size_of::<T>()) && bytes > 0 && bytes <= CHUNK_BYTES_MAX;
        let is_due = come.is_some_and(|come| head.first == come && come + bytes / size_of::<T>() <= all);
        if !self.is_previous(peer) || !is_step || !fits || !is_due {
            return Err(format!("worker {peer} sent elements of panel {} that are not expected", head.step));
        }
        Ok(())
    }

    /// Elements of a panel have come from a neighbour; they were checked when their head came.
    pub(super) fn take_panel(&mut self, head: &[u8], bytes: &[u8]) -> Result<LuOutput, WorkerError> {
        let LuPanelHead { step, first, pivots } = LuPanelHead::decode(head)?;
        let mut out = LuOutput::default();
        if first == 0 {
            self.dispatch(LuEvent::Arriving(step), &mut out)?;
            let mut elements = self.spare.pop().unwrap_or_default();
            make_room_in_huge_pages(&mut elements, self.part.panel_elements(step));
            elements.resize(self.part.panel_elements(step), T::ZERO);
            self.panels.insert(step, PanelHere::Arriving { elements, come: 0, pivots });
        }
        let Some(PanelHere::Arriving { elements, come, pivots }) = self.panels.get_mut(&step) else {
            return Err(WorkerError::Here(format!("panel {step} was lost")));
        };
        let count = bytes.len() / size_of::<T>();
        if !copy_bytes(bytes, &mut elements[*come..*come + count]) {
            return Err(ProtocolError::new("elements of a panel that are cut").into());
        }
        *come += count;
        out.wakes = true;
        if *come == elements.len() {
            let (elements, pivots) = (std::mem::take(elements), std::mem::take(pivots));
            let panel = self.part.received(step, elements, pivots);
            let panel = panel.ok_or_else(|| ProtocolError::new(format!("panel {step} has wrong pivots")))?;
            self.panels.insert(step, PanelHere::Whole(Arc::new(panel)));
            self.dispatch(LuEvent::Arrived(step), &mut out)?;
        }
        Ok(out)
    }

    /// The next machine has spent panels.
    pub(super) fn next_has_spent(&mut self, peer: u32, head: &[u8]) -> Result<LuOutput, WorkerError> {
        let count = usize::try_from(decode_number(head)?).unwrap_or(usize::MAX);
        if !self.is_next(peer) {
            return Err(ProtocolError::new(format!("worker {peer} gets no panels from this one")).into());
        }
        let mut out = LuOutput::default();
        self.dispatch(LuEvent::NextSpent(count), &mut out)?;
        Ok(out)
    }

    /// The next frame to a neighbour, if there is one; the panel whose last elements it has.
    pub(super) fn next_frame(&mut self, peer: u32) -> Option<(Frame, Option<usize>)> {
        if self.is_previous(peer)
            && let Some(count) = self.tell.take()
        {
            let head = encode_number(to_u64(count));
            return Some((Frame::new(Kind::LuSpent.code(), head, Body::Empty), None));
        }
        let (step, sent) = self.passing.filter(|_| self.is_next(peer))?;
        let each = LU_FRAME_BYTES / size_of::<T>();
        let (all, region, pivots) = match self.panels.get(&step)? {
            PanelHere::Whole(panel) => {
                let all = panel.elements().len();
                let bytes = each.min(all - sent) * size_of::<T>();
                let start = sent * size_of::<T>();
                let region = SharedRegion::new(Arc::new(PanelBytes(panel.clone())), start, bytes, bytes, 1);
                (all, region, panel.pivots())
            }
            PanelHere::Arriving { elements, come, pivots } => {
                let ready = elements[sent..*come].chunks(each).next().filter(|ready| !ready.is_empty())?;
                let region = SharedRegion::whole(Arc::new(ElementBytes(ready.to_vec())));
                (elements.len(), region, &pivots[..])
            }
        };
        let pivots = if sent == 0 { pivots.to_vec() } else { Vec::new() };
        let head = LuPanelHead { step, first: sent, pivots }.encode();
        let sent = sent + region.len() / size_of::<T>();
        let is_last = sent == all;
        self.passing = (!is_last).then_some((step, sent));
        let frame = Frame::new(Kind::LuPanel.code(), head, Body::Shared(region));
        Some((frame, is_last.then_some(step)))
    }

    /// A panel has been sent as a whole.
    pub(super) fn has_passed(&mut self, step: usize) -> Result<LuOutput, WorkerError> {
        let mut out = LuOutput::default();
        self.dispatch(LuEvent::Passed(step), &mut out)?;
        Ok(out)
    }
}
