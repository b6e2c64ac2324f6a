//! Random numbers of the system: keys, seeds of sessions and of checks, and jitter; and the settings of sessions, which need
//! them.

use bramble_primary::SessionRequest;
use bramble_report::exit::Failure;
use bramble_worker::host_name;

/// Fills `bytes` with the system's random numbers.
#[cfg(target_os = "linux")]
pub fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// Fills `bytes` with the system's random numbers.
#[cfg(not(target_os = "linux"))]
pub fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// A random number.
pub fn seed() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    random(&mut bytes).map_err(|e| Failure::failed(format!("no random numbers: {e}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// The settings of a product's sessions: `credits` is the memory that each worker may offer at most.
pub fn session_request(
    credits: Option<u64>,
    steals: bool,
    account: bool,
    degraded: bool,
) -> Result<SessionRequest, Failure> {
    Ok(SessionRequest { seed: seed()? as u32, random, name: host_name(), credits, steals, account, degraded })
}
