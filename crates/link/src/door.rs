//! The door: incoming connections until the peer has proven its key.
//!
//! Place in the flow: between a listening socket and the code that serves links: a worker, or a primary that waits
//! for workers to dial in.
//!
//! Invariants: at most `connections` unproven connections at a time, and at most `per_address` from one address. A
//! new connection beyond a limit displaces the oldest (the oldest of that address, if the address is at its limit),
//! so strangers that hold connections open do not lock out members. A stranger never displaces a peer that has
//! proven a key; only more than `connections` proven peers displace the oldest proven one. One deadline covers
//! everything up to the end of the proof, and another the time while the `Slot` exists. The door accepts
//! connections at a limited rate, and it closes those of an address that exceeds the address's rate at once, before
//! the cost of TLS. So a flood leaves the CPU to running sessions and the door to other addresses.
//!
//! Deliberately absent: frames and messages, and any record of strangers after their connections are closed.

use crate::{Link, LinkError, Proven, Security};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Pause before the next accept when the process has no free file descriptors.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// Limits for connections that are not yet served.
#[derive(Clone, Copy, Debug)]
pub struct DoorLimits {
    /// Unproven connections at a time.
    pub connections: usize,
    /// Unproven connections at a time from one address (from one /64 of IPv6).
    pub per_address: usize,
    /// Connections accepted per second.
    pub per_second: u32,
    /// Connections per second that one address may make without being closed at once, after a burst of
    /// `connections`.
    pub per_address_per_second: u32,
    /// Deadline for the proof of the key.
    pub deadline: Duration,
    /// Deadline after the proof: the peer must have sent its request and been served by then.
    pub proven_deadline: Duration,
}

/// A listening socket with the connections that are not yet served.
pub struct Door {
    listener: TcpListener,
    security: Security,
    limits: DoorLimits,
    strangers: Rc<RefCell<Vec<Stranger>>>,
    handshakes: JoinSet<(SocketAddr, Result<Arrival, LinkError>)>,
    calm: Calm,
    next_id: u64,
    next_accept: Instant,
}

/// A link whose peer has proven what `Security` requires.
pub struct Arrival {
    /// The link.
    pub link: Link,
    /// The link's slot at the door; drop it once the peer has sent a valid request.
    pub slot: Slot,
}

struct Stranger {
    id: u64,
    address: IpAddr,
    /// The peer has proven a key, and has not sent its request yet.
    proven: bool,
    leave: Rc<Notify>,
}

/// A slot for one connection that is not yet served.
pub struct Slot {
    strangers: Rc<RefCell<Vec<Stranger>>>,
    id: u64,
    leave: Rc<Notify>,
    deadline: Cell<Instant>,
    /// The time that the peer has after its proof.
    patience: Duration,
    most: usize,
}

impl Slot {
    /// Marks the peer as proven (or no proof is required): strangers no longer displace it, and it gets the longer
    /// deadline.
    pub fn known(&self) {
        self.deadline.set(Instant::now() + self.patience);
        let mut strangers = self.strangers.borrow_mut();
        if let Some(own) = strangers.iter_mut().find(|s| s.id == self.id) {
            own.proven = true;
        }
        if strangers.iter().filter(|s| s.proven).count() > self.most {
            push_out(&mut strangers, |s| s.proven);
        }
    }

    /// The result of `work`, unless the deadline passes or newer connections displace this one first.
    pub async fn guard<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E>
    where
        E: From<LinkError>,
    {
        let why = tokio::select! {
            done = timeout_at(self.deadline.get(), work) => match done {
                Ok(result) => return result,
                Err(_) => "it did not prove its key in time",
            },
            () = self.leave.notified() => "newer connections displaced it before it proved its key",
        };
        Err(LinkError::Untrusted(why.to_owned()).into())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.strangers.borrow_mut().retain(|s| s.id != self.id);
    }
}

impl Door {
    /// A door at a listening socket.
    pub fn new(listener: TcpListener, security: Security, limits: DoorLimits) -> Self {
        let strangers = Rc::default();
        let handshakes = JoinSet::new();
        let (next_accept, calm) = (Instant::now(), Calm::default());
        Self { listener, security, limits, strangers, handshakes, calm, next_id: 0, next_accept }
    }

    /// Waits for the next connection whose proof has ended: its address, and the link or the reason of the failure.
    /// Must run inside a `tokio::task::LocalSet`. Cancel-safe.
    pub async fn next(&mut self) -> (SocketAddr, Result<Arrival, LinkError>) {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(arrived) = done {
                        return arrived;
                    }
                }
                accepted = paced(&self.listener, self.next_accept) => match accepted {
                    Ok((stream, address)) => {
                        if let Some(e) = self.begin(stream, address) {
                            return (address, Err(e));
                        }
                    }
                    // Out of descriptors, or the peer has already gone: wait until other connections have ended.
                    Err(_) => self.next_accept = Instant::now() + OUT_OF_DESCRIPTORS,
                },
            }
        }
    }

    /// Starts the handshake of a new connection. An error if its address exceeds its rate.
    fn begin(&mut self, stream: TcpStream, address: SocketAddr) -> Option<LinkError> {
        let now = Instant::now();
        // A burst of up to `connections` is accepted without a pause.
        let burst = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let gap = Duration::from_secs(1) / self.limits.per_second.max(1);
        let earliest = now.checked_sub(gap * burst).unwrap_or(self.next_accept);
        self.next_accept = self.next_accept.max(earliest) + gap;
        let neighbourhood = neighbourhood(address.ip());
        let gap = Duration::from_secs(1) / self.limits.per_address_per_second.max(1);
        if !self.calm.takes(neighbourhood, now, gap, burst) {
            return Some(LinkError::Untrusted("connections come from there too fast".to_owned()));
        }
        let slot = self.slot(neighbourhood);
        let security = self.security.clone();
        self.handshakes.spawn_local(async move {
            let result = slot.guard(security.accept(stream)).await;
            if result.as_ref().is_ok_and(|link| link.proven != Proven::Nothing) {
                slot.known();
            }
            (address, result.map(|link| Arrival { link, slot }))
        });
        None
    }

    /// A slot for a new connection; the connection that is displaced for it, if any, is notified.
    fn slot(&mut self, address: IpAddr) -> Slot {
        let mut strangers = self.strangers.borrow_mut();
        let of_address = |s: &Stranger| !s.proven && s.address == address;
        if strangers.iter().filter(|s| of_address(s)).count() >= self.limits.per_address {
            push_out(&mut strangers, of_address);
        } else if strangers.iter().filter(|s| !s.proven).count() >= self.limits.connections {
            push_out(&mut strangers, |s| !s.proven);
        }
        let (id, leave) = (self.next_id, Rc::new(Notify::new()));
        self.next_id += 1;
        strangers.push(Stranger { id, address, proven: false, leave: leave.clone() });
        let deadline = Instant::now() + self.limits.deadline;
        Slot {
            strangers: self.strangers.clone(),
            id,
            leave,
            deadline: Cell::new(deadline),
            patience: self.limits.proven_deadline,
            most: self.limits.connections,
        }
    }
}

/// Displaces the oldest matching connection. The list is in order of arrival.
fn push_out(strangers: &mut Vec<Stranger>, some: impl Fn(&Stranger) -> bool) {
    if let Some(oldest) = strangers.iter().position(some) {
        strangers.remove(oldest).leave.notify_one();
    }
}

/// When each recent address will have been quiet for long enough to be forgotten.
#[derive(Default)]
struct Calm(BTreeMap<IpAddr, Instant>);

impl Calm {
    /// Addresses that are tracked separately; further new addresses share one entry.
    const ADDRESSES_MAX: usize = 1024;

    /// Whether one more connection from that address is within its rate: one per `gap` in the long run, `burst` at
    /// once.
    fn takes(&mut self, address: IpAddr, now: Instant, gap: Duration, burst: u32) -> bool {
        if self.0.len() >= Self::ADDRESSES_MAX {
            self.0.retain(|_, calm| *calm > now);
        }
        let is_full = self.0.len() >= Self::ADDRESSES_MAX && !self.0.contains_key(&address);
        let address = if is_full { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { address };
        let calm = self.0.get(&address).copied().unwrap_or(now).max(now) + gap;
        let takes = calm <= now + gap * burst;
        if takes {
            self.0.insert(address, calm);
        }
        takes
    }
}

async fn paced(listener: &TcpListener, at: Instant) -> std::io::Result<(TcpStream, SocketAddr)> {
    sleep_until(at).await;
    listener.accept().await
}

/// The unit that a rate limit applies to. A host with IPv6 usually has 2^64 addresses, so a /64 counts as one.
fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    const LIMITS: DoorLimits = DoorLimits {
        connections: 6,
        per_address: 4,
        per_second: 10_000,
        per_address_per_second: 10_000,
        // Enough time to prove the key in an unoptimised build on a busy machine.
        deadline: Duration::from_secs(3),
        proven_deadline: Duration::from_secs(5),
    };

    /// Runs a check against a door on loopback, with its address.
    fn at_door<F: AsyncFnOnce(Door, SocketAddr)>(security: Security, check: F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            check(Door::new(listener, security, LIMITS), address).await;
        });
    }

    fn key() -> crate::ClusterKey {
        crate::ClusterKey::from_bytes([5; crate::ClusterKey::BYTES])
    }

    #[test]
    fn who_says_nothing_is_gone_after_the_deadline() {
        at_door(Security::proven(key(), 2, "1"), async |mut door, address| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let (_, result) = door.next().await;
            let text = result.err().unwrap().to_string();
            assert!(text.contains("in time"), "{text}");
            assert!(door.strangers.borrow().is_empty());
            // The listener sends its 32 random bytes and closes, without a reason.
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.unwrap();
            assert_eq!(got.len(), 32);
        });
    }

    #[test]
    fn a_crowd_of_one_address_pushes_out_its_own_oldest_and_a_member_still_gets_in() {
        at_door(Security::proven(key(), 2, "1"), async |mut door, address| {
            let mut crowd = Vec::new();
            for _ in 0..40 {
                crowd.push(TcpStream::connect(address).await.unwrap());
            }
            let dialling = async {
                let stream = TcpStream::connect(address).await.unwrap();
                Security::proven(key(), 2, "1").dial(stream).await.map(drop)
            };
            let (mut refused, mut let_in) = (0, 0);
            let serving = async {
                while refused + let_in < 41 {
                    let (_, result) = door.next().await;
                    assert!(door.strangers.borrow().len() <= LIMITS.per_address);
                    match result {
                        Ok(arrival) => {
                            assert_eq!(arrival.link.proven, Proven::Member);
                            let_in += 1;
                        }
                        Err(e) => {
                            assert!(matches!(e, LinkError::Untrusted(_)), "{e}");
                            refused += 1;
                        }
                    }
                }
            };
            let (dialled, ()) = tokio::join!(dialling, serving);
            dialled.unwrap();
            assert_eq!((refused, let_in), (40, 1));
        });
    }

    #[test]
    fn who_has_proven_the_key_is_not_pushed_out_by_strangers() {
        at_door(Security::proven(key(), 2, "1"), async |mut door, address| {
            let dialling = async {
                let stream = TcpStream::connect(address).await.unwrap();
                Security::proven(key(), 2, "1").dial(stream).await
            };
            let (dialled, (_, arrival)) = tokio::join!(dialling, door.next());
            let (_link, arrival) = (dialled.unwrap(), arrival.unwrap_or_else(|e| panic!("{e}")));
            let mut crowd = Vec::new();
            let coming = async {
                for _ in 0..20 {
                    crowd.push(TcpStream::connect(address).await.unwrap());
                    let _ = tokio::time::timeout(Duration::from_millis(10), door.next()).await;
                }
                Ok::<(), LinkError>(())
            };
            arrival.slot.guard(coming).await.unwrap();
            assert!(door.strangers.borrow().len() <= LIMITS.per_address + 1);
            // More members than the limit displace the oldest member.
            let of = |last: usize| IpAddr::from([10, 0, 0, last as u8]);
            let more: Vec<Slot> = (0..LIMITS.connections).map(|n| door.slot(of(n))).collect();
            more.iter().for_each(Slot::known);
            let displaced = arrival.slot.guard(std::future::pending::<Result<(), LinkError>>()).await;
            assert!(displaced.unwrap_err().to_string().contains("displaced"));
        });
    }

    #[test]
    fn strangers_of_many_addresses_share_what_there_is() {
        at_door(Security::open(crate::Reach::Loopback, 2, "1"), async |mut door, _| {
            let mut slots: Vec<Slot> = Vec::new();
            for last in 1..=10u8 {
                slots.push(door.slot(IpAddr::from([10, 0, 0, last])));
                assert!(door.strangers.borrow().len() <= LIMITS.connections);
            }
            let displaced = slots[3].guard(std::future::pending::<Result<(), LinkError>>()).await;
            assert!(displaced.unwrap_err().to_string().contains("displaced"));
            drop(slots.pop());
            assert_eq!(door.strangers.borrow().len(), LIMITS.connections - 1);
        });
    }

    #[test]
    fn an_address_that_comes_too_fast_leaves_the_door_to_others() {
        let (mut calm, now, gap) = (Calm::default(), Instant::now(), Duration::from_millis(20));
        let of = |last: u32| IpAddr::from(Ipv4Addr::from_bits(last));
        let taken = (0..1000).filter(|_| calm.takes(of(1), now, gap, 64)).count();
        assert_eq!(taken, 64);
        assert!(calm.takes(of(2), now, gap, 64));
        let later = now + gap * 10;
        assert_eq!((0..1000).filter(|_| calm.takes(of(1), later, gap, 64)).count(), 10);
        // The number of tracked addresses is bounded.
        assert_eq!((10..10_000).filter(|n| calm.takes(of(*n), later, gap, 64)).count(), 1023 + 64);
        assert!(calm.0.len() <= Calm::ADDRESSES_MAX + 1);
        assert!(calm.takes(of(20_000), later + gap * 64, gap, 64) && calm.0.len() == 1);
    }

    #[test]
    fn an_ipv6_network_counts_as_one() {
        let of = |text: &str| neighbourhood(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::"), of("2001:db8:1:3::"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
