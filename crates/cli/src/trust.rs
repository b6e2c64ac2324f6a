//! Who may be the other end of a connection, as the command line and the cluster key say.
//!
//! Place in the flow: before the first connection of a worker or a multiply.
//!
//! Invariants: with a cluster key every connection to workers is encrypted and proven, on loopback too. Without
//! one nothing leaves this machine, unless two options say so, and then a banner says so every time.
//!
//! Deliberately absent: any other way to switch this off, a variable or a file for instance.

use crate::args::TrustArgs;
use crate::exit::Failure;
use bramble_link::{ClusterKey, Reach, Security};
use bramble_worker::limits::PROTOCOL;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How this machine's connections become links.
pub(crate) fn security(args: &TrustArgs) -> Result<Security, Failure> {
    match (args.insecure, args.i_trust_this_network) {
        (true, true) => {
            crate::say(
                "bramble: INSECURE: nothing is encrypted and nobody is asked for a key: anyone on this network can \
                 use these machines, and read and change matrices",
            );
            Ok(Security::open(Reach::Anywhere, PROTOCOL, VERSION))
        }
        (true, false) => {
            crate::say("bramble: INSECURE: nobody is asked for a key, so only this machine is reached");
            Ok(Security::open(Reach::Loopback, PROTOCOL, VERSION))
        }
        (false, _) => match crate::key::load()? {
            Some(key) => Security::sealed(key, PROTOCOL, VERSION).map_err(|e| Failure::failed(e.to_string())),
            None => Ok(Security::open(Reach::Loopback, PROTOCOL, VERSION)),
        },
    }
}

/// Connections of this machine with processes that share a key which nobody else knows.
pub(crate) fn between_processes(key: ClusterKey) -> Security {
    Security::proven(key, PROTOCOL, VERSION)
}

/// One sentence for those who start a worker.
pub(crate) fn sentence(security: &Security) -> String {
    match security.key_id() {
        Some(id) => format!("cluster key {id}"),
        None if security.reaches(std::net::Ipv4Addr::BROADCAST.into()) => {
            "no key: open to the network".to_owned()
        }
        None => "no cluster key: only this machine can use it (see: bramble key)".to_owned(),
    }
}
