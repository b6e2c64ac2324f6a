//! Greets the machines of an open cluster before its first call, and machines that join between two calls.
//!
//! Place in the flow: the holder of a cluster greets once after opening it, and awaits `attend` while it has no call to make.
//!
//! Invariants: a worker closes a connection whose first hello does not come in time (`HANDSHAKE_DEADLINE` without a key), so a
//! cluster that waits for its user says hello to every machine first. A greeted connection is idle: it is pinged, and any call
//! can use it. A machine that does not answer the greeting is an error, or missing, as in a product.
//!
//! Deliberately absent: measuring links, and kernels that were not asked for: the first call decides about both.

use super::Cluster;
use super::placing::opening;
use crate::gathering::{OpenedSessions, open_all};
use crate::product::{ProductObserver, SessionRequest};
use bramble_link::LocalFuture;
use bramble_matrix::DType;
use bramble_sessions::{Connection, Opening, PrimaryError};

/// Connections that `attend` takes between two calls: the next call opens a session over each of them.
const ATTENDED_MAX: usize = 1000;

impl Cluster {
    /// Opens a session with every machine and ends it, so that connections stay open however long the first call takes to come.
    pub fn greet<'f>(
        &'f mut self,
        sessions: &'f SessionRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<(), PrimaryError>> {
        Box::pin(async move {
            let OpenedSessions { local, mut workers, .. } =
                open_all(sessions, &greeting(sessions), self, watch).await?;
            workers.push(local);
            self.idle.release(workers).await;
            Ok(())
        })
    }

    /// Greets machines that join, and never ends; to be dropped when the next call comes. The next call names them.
    pub fn attend<'f>(&'f mut self, sessions: &'f SessionRequest) -> LocalFuture<'f, ()> {
        Box::pin(async move {
            self.numbers.begin_product(sessions.seed);
            for _ in 0..ATTENDED_MAX {
                let Some(later) = &mut self.idle.later else { break };
                let Some(end) = later.recv().await else { break };
                let connection = Connection::new(end, self.numbers.connection());
                self.attended.insert(connection.known.number);
                self.idle.greet(connection, greeting(sessions), self.numbers.session());
            }
            std::future::pending().await
        })
    }
}

/// The hello of a session without any work: the kernel that every worker has, for so few operations that the worker measures
/// for milliseconds.
fn greeting(sessions: &SessionRequest) -> Opening {
    opening(sessions, "simd".to_owned(), DType::F64, 0.0)
}
