//! The security of connections, from the command line and the cluster key.
//!
//! Place in the flow: before the first connection of a worker or a primary.
//!
//! Invariants: with a cluster key, every connection is encrypted, and both ends prove the key, on loopback, too.
//! Without one, only loopback connections are allowed, unless two options permit others, and then each run prints a
//! warning.
//!
//! Deliberately absent: any other way to switch security off, such as a variable or a file.

use crate::args::TrustArgs;
use bramble_link::{ClusterKey, Reach, Security};
use bramble_report::exit::Failure;
use bramble_worker::limits::PROTOCOL;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The security that this process applies to its connections.
pub fn security(args: &TrustArgs) -> Result<Security, Failure> {
    match (args.insecure, args.i_trust_this_network) {
        (true, true) => {
            bramble_report::say(
                "bramble: INSECURE: no encryption and no cluster key: anyone on this network can use these machines, \
                and read and change matrices",
            );
            Ok(Security::open(Reach::Anywhere, PROTOCOL, VERSION))
        }
        (true, false) => {
            bramble_report::say(
                "bramble: INSECURE: no cluster key is used, so only connections within this machine are allowed",
            );
            Ok(Security::open(Reach::Loopback, PROTOCOL, VERSION))
        }
        (false, _) => match args.key.clone().map_or_else(crate::key::load, |key| Ok(Some(key)))? {
            Some(key) => Security::sealed(key, PROTOCOL, VERSION).map_err(|e| Failure::failed(e.to_string())),
            None => Ok(Security::open(Reach::Loopback, PROTOCOL, VERSION)),
        },
    }
}

/// Security between processes of this machine that share a one-time key.
pub fn between_processes(key: ClusterKey) -> Security {
    Security::proven(key, PROTOCOL, VERSION)
}

/// The security of a worker, for its start message.
pub fn sentence(security: &Security) -> String {
    match security.key_id() {
        Some(id) => format!("cluster key {id}"),
        None if security.reaches(std::net::Ipv4Addr::BROADCAST.into()) => {
            "no key: open to the network".to_owned()
        }
        None => "no cluster key: only this machine can use it (see: bramble key)".to_owned(),
    }
}
