//! An open cluster: connections with machines that compute one product after another.
//!
//! Place in the flow: the caller passes links in and runs products; each product opens a session over every link, and gives the
//! links back when it ends. `multiply` is a cluster of one product.
//!
//! Invariants: products run one at a time. A connection is either idle, in `IdleConnections`, or with the product that runs. A
//! product that fails or is stopped says goodbye to all machines, and a machine that answers serves the next product. Session
//! numbers are never used twice.
//!
//! Deliberately absent: where links come from (the caller knows).

mod asking;
mod checking;
mod getting;
mod greeting;
mod kept;
mod machines;
mod making;
mod nodes;
mod part;
mod placing;
mod reducing;
mod task_count;

use crate::product::{Finished, ProductObserver, ProductPlan, Request, one_product, plan_only};
pub use bramble_arrays::{ArrayId, PlacedOperand};
use bramble_arrays::{PlacedArray, PlacedArrays};
use bramble_link::LocalFuture;
use bramble_matrix::Matrix;
use bramble_sessions::{Connection, IdleConnections, MachineLinks, Numbers, PrimaryError};
use kept::KeptSource;
pub(crate) use kept::sketch_of;
pub(crate) use machines::primary_error;
pub use making::{MakeReport, MakeRequest, MakeSubject};
pub use nodes::NodeReport;
pub(crate) use part::digest_of;
pub use placing::{PartReport, PutReport, PutRequest};
pub use reducing::{ReduceReport, ReduceRequest, ReduceSubject};
use std::collections::BTreeSet;
use std::rc::Rc;
pub use task_count::{TaskProgress, TaskUnit};

/// The placed matrices of a cluster.
pub(crate) type ClusterArrays = PlacedArrays<Matrix, KeptSource>;
/// One of them.
type PlacedMatrix = PlacedArray<Matrix, KeptSource>;

/// Machines measure their speed as for a product of this many operations: longest, since a placement stays.
const PROBED_FLOPS: f64 = 1e11;

/// How a cluster is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Whether another product may follow. Otherwise machines without work are let go as soon as the plan is known, and a
    /// stopped product does not wait for goodbyes.
    pub keeps_links: bool,
}

/// Connections with machines that compute one product after another. Must be used inside one `tokio::task::LocalSet`.
pub struct Cluster {
    pub(crate) idle: IdleConnections,
    pub(crate) numbers: Rc<Numbers>,
    /// The matrices that are placed on the machines.
    pub(crate) arrays: ClusterArrays,
    /// Whether the workers are known to be alike.
    pub(crate) alike: bool,
    /// Workers that could not be reached, one sentence each.
    pub(crate) missing: Vec<String>,
    /// Measured bandwidth of all links together, if it was measured.
    pub(crate) nic_bytes_per_s: Option<f64>,
    /// Numbers of connections with machines that have joined between calls, and that no call has used yet.
    pub(crate) attended: BTreeSet<u64>,
}

impl Cluster {
    /// A cluster of these machines. `watch` is told of the machines that could not be reached.
    pub fn open<'f>(
        links: MachineLinks,
        options: ClusterOptions,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<Self, PrimaryError>> {
        Box::pin(async move {
            let MachineLinks { local, workers, alike, missing, later } = links;
            missing.iter().for_each(|why| watch.missing(why));
            let numbers = Rc::new(Numbers::default());
            let mut idle = IdleConnections::new(options.keeps_links, later);
            for end in std::iter::once(local).chain(workers) {
                idle.add(Connection::new(end, numbers.connection()));
            }
            let (arrays, attended, nic_bytes_per_s) = (ClusterArrays::default(), BTreeSet::new(), None);
            Ok(Self { idle, numbers, arrays, alike, missing, nic_bytes_per_s, attended })
        })
    }

    /// Computes and checks one product on all machines that are there. A C that fails the check is returned, too:
    /// `report.check.verify` tells, and the caller must not commit it. After an error the next product can run, on the machines
    /// whose links have survived. If the future is dropped, the links that it uses are closed.
    pub fn run<'f>(
        &'f mut self,
        request: Request,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<Finished, PrimaryError>> {
        Box::pin(async move { one_product(request, self, watch).await })
    }

    /// The plan that `run` would carry out for this request now; the request's output is only measured, as for a product.
    pub fn plan<'f>(
        &'f mut self,
        request: Request,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<ProductPlan, PrimaryError>> {
        Box::pin(async move { plan_only(request, self, watch).await })
    }

    /// Closes all links, which tells the machines that no product follows.
    pub fn close(mut self) -> LocalFuture<'static, ()> {
        Box::pin(async move {
            self.idle.close().await;
        })
    }
}

/// Computes and checks a product. Must run inside a `tokio::task::LocalSet`. A C that fails the check is
/// returned, too: `report.check.verify` tells, and the caller must not commit it.
pub fn multiply<'f>(
    request: Request,
    links: MachineLinks,
    watch: &'f dyn ProductObserver,
) -> LocalFuture<'f, Result<Finished, PrimaryError>> {
    Box::pin(async move {
        let mut cluster = Cluster::open(links, ClusterOptions { keeps_links: false }, watch).await?;
        let finished = cluster.run(request, watch).await;
        cluster.close().await;
        finished
    })
}
