//! Random numbers of the system: keys, seeds of sessions and of checks, and jitter.

use bramble_report::exit::Failure;

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
