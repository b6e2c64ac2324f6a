//! Shared by several examples: pseudo-random bytes, and the CPU time of a thread.

/// Pseudo-random bytes.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(word).take(bytes / 8).flatten().collect()
}

#[allow(dead_code)] // Not all of them count it.
/// CPU seconds of this thread; 0 on systems other than Linux.
pub(crate) fn thread_cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    ns.unwrap_or_default() / 1e9
}
