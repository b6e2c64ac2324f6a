//! Makes arrays from others at the machines, where the results stay.
//!
//! Place in the flow: a call opens sessions with the machines that may hold a part, and `bramble_arrays` makes the array over
//! them.
//!
//! Invariant: after an error the cluster is as before, except for machines that were lost, and for the unfinished array that the
//! caller then has.
//!
//! Deliberately absent: decisions, and the check (`checking.rs`).

use super::machines::{OpenMachines, primary_error};
use super::placing::put_report;
use super::{ArrayId, Cluster};
use crate::product::{CheckRequest, ProductObserver, SessionRequest};
use bramble_arrays::{ArrayOperation, MadeArray, MadeFrom, MakeOrder, UnfinishedArray};
use bramble_link::LocalFuture;
use bramble_matrix::Matrix;
use bramble_plan::{Placement, Preference};
use bramble_sessions::PrimaryError;
use std::time::Instant;

/// What an array is made from.
pub type MakeSubject = MadeFrom<Matrix>;

/// An array to make.
pub struct MakeRequest {
    /// Its name in messages.
    pub name: String,
    /// The operation and its operands. At least one operand should be placed.
    pub subject: MakeSubject,
    /// Where its parts lie; `None`: so that few bytes travel.
    pub placement: Option<Placement>,
    /// Kernel of products, by name, or `auto`.
    pub kernel: String,
    /// Whether this process's own threads hold parts, too.
    pub who: Preference,
    /// The sessions with the machines.
    pub sessions: SessionRequest,
    /// How thoroughly the result is checked.
    pub check: CheckRequest,
    /// Whether machines may pass operands to each other.
    pub relays: bool,
}

/// How an array was made.
#[derive(Clone, Debug)]
pub struct MakeReport {
    /// Where it lies; with the bytes that this process sent, and the seconds.
    pub put: super::PutReport,
    /// Bytes of operands that machines sent to each other.
    pub bytes_between: u64,
    /// Whether the result was checked.
    pub is_checked: bool,
    /// Lines that this process has computed again, since their sums were doubtful.
    pub lines_recomputed: u64,
}

impl Cluster {
    /// Makes an array that stays at the machines. `unfinished`: the parts of it that they hold from an earlier attempt. After
    /// `PrimaryError::PartLost` it lists the parts that they hold by then, for the next call or for `free_unfinished`.
    pub fn make<'f>(
        &'f mut self,
        request: MakeRequest,
        unfinished: &'f mut Option<UnfinishedArray>,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<(ArrayId, MakeReport), PrimaryError>> {
        Box::pin(async move {
            let began = Instant::now();
            let MakeRequest { name, subject, placement, kernel, who, sessions, check, relays } = request;
            let probe = (kernel, subject.dtype(), subject.flops());
            let (opened, mut lost) = self.holders(&sessions, probe, who, watch).await?;
            let (mut machines, mut holders) = OpenMachines::new(opened, sessions.random, Some(check), watch);
            let mut operation =
                ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
            let order = MakeOrder { name: &name, subject, placement: placement.as_ref(), relays };
            let made = operation.make(order, unfinished).await.map_err(primary_error);
            lost.extend(holders.lost());
            let bytes_sent = machines.bytes_sent;
            self.idle.release(machines.into_sessions()).await;
            let MadeArray { id, bytes_between, lines_recomputed } = made?;
            let array = self.arrays.get(id).map_err(primary_error)?;
            let put = put_report(array, &holders.names(), (lost, bytes_sent, began.elapsed().as_secs_f64()));
            let is_checked = lines_recomputed.is_some();
            let lines_recomputed = lines_recomputed.unwrap_or(0);
            Ok((id, MakeReport { put, bytes_between, is_checked, lines_recomputed }))
        })
    }
}
