//! The machines of an open cluster: how fast they are, what they hold, and how fast their links are.
//!
//! Place in the flow: between products, as placing: a session with each machine, of which the link is measured if it is new.
//!
//! Invariant: machines are asked and measured exactly as for a product.

use super::placing::opening;
use super::{Cluster, PROBED_FLOPS};
use crate::gathering::{OpenedSessions, early_loss, open_all};
use crate::product::{ProductObserver, SessionRequest};
use bramble_link::LocalFuture;
use bramble_matrix::DType;
use bramble_sessions::{PrimaryError, Session, Surveyed, measure};

/// A machine of an open cluster.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// What it has said of itself, and its link.
    pub surveyed: Surveyed,
    /// Whether it is this process.
    pub is_primary: bool,
    /// Bytes of placed matrices that it holds for this cluster.
    pub held_bytes: u64,
    /// Bytes that it has left for more.
    pub left_bytes: u64,
}

impl Cluster {
    /// All machines that answer, this process first. Speeds are of that kernel and element type.
    pub fn nodes<'f>(
        &'f mut self,
        (kernel, dtype): (String, DType),
        sessions: &'f SessionRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<Vec<NodeReport>, PrimaryError>> {
        Box::pin(async move {
            let opening = opening(sessions, kernel, dtype, PROBED_FLOPS);
            let OpenedSessions { local, mut workers, .. } = open_all(sessions, &opening, self, watch).await?;
            let (nic_bytes_per_s, silent) = measure(&mut workers, self.nic_bytes_per_s, |_| true).await?;
            self.nic_bytes_per_s = nic_bytes_per_s;
            for e in silent {
                let PrimaryError::Unreachable { name, why } = e else { return Err(e) };
                early_loss(watch, name, why);
            }
            workers.insert(0, local);
            let nodes = workers.iter().enumerate().map(|(at, session)| self.node(session, at == 0)).collect();
            self.idle.release(workers).await;
            Ok(nodes)
        })
    }

    fn node(&self, session: &Session, is_primary: bool) -> NodeReport {
        let held = |id| {
            let array = self.arrays.get::<PrimaryError>(id).ok()?;
            let own = array.layout.parts.iter();
            let own = own.filter(|part| array.holders[part.machine] == session.known.number);
            Some(own.filter_map(|part| part.rect.shape().bytes(array.layout.dtype)).sum::<u64>())
        };
        NodeReport {
            surveyed: Surveyed::of(session, None, !is_primary && self.alike),
            is_primary,
            held_bytes: self.arrays.ids().into_iter().filter_map(held).sum(),
            left_bytes: session.welcome.hold_bytes,
        }
    }
}
