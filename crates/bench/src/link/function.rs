//! The eight functions that are measured, as in MPI benchmarks, and how many bytes each moves.
//!
//! Invariants: JSON, tables and scripts use the same names for functions and algorithms; sizes are defined as in the
//! OSU benchmarks: bytes of one message, and, for all-to-all, bytes from each end to each other end.

use bramble_link::CHUNK_BYTES_MAX;
use clap::ValueEnum;

/// Messages sent back to back before an acknowledgement, as in the OSU benchmarks.
const WINDOW: usize = 64;
/// Most bytes of a window; it has at least one message.
const WINDOW_BYTES: usize = 64 << 20;
/// Above this size, all-reduce uses a ring, which moves fewer bytes; below, recursive doubling, which needs fewer
/// steps.
const RING_BYTES: usize = 64 << 10;
const _: () = assert!(RING_BYTES <= CHUNK_BYTES_MAX);

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Function {
    /// How long one message occupies the sender
    Gap,
    /// Half of a round trip
    #[value(alias = "round-trip")]
    Latency,
    /// Messages in one direction, back to back
    Bandwidth,
    /// Messages in both directions at once
    TwoWay,
    /// A message from one end to all others
    Broadcast,
    /// Sums of numbers from all ends, at one end
    Reduce,
    /// Sums of numbers from all ends, at all ends
    AllReduce,
    /// A different message from each end to each other end
    AllToAll,
}

impl Function {
    /// All functions, in the order of measurement.
    pub(crate) const ALL: [Self; 8] = [
        Self::Gap,
        Self::Latency,
        Self::Bandwidth,
        Self::TwoWay,
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::AllToAll,
    ];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::TwoWay => "two-way",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllReduce => "all-reduce",
            Self::AllToAll => "all-to-all",
        }
    }

    /// Its index in `ALL`, for orders to the ends.
    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().position(|f| *f == self).and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
    }

    /// The function with this index.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether it always involves two ends.
    pub(crate) fn is_of_pairs(self) -> bool {
        matches!(self, Self::Gap | Self::Latency | Self::Bandwidth | Self::TwoWay)
    }

    /// Whether its main figure is bytes a second, not time.
    pub(crate) fn is_a_rate(self) -> bool {
        matches!(self, Self::Bandwidth | Self::TwoWay)
    }

    /// Whether it allows messages of `bytes` bytes: sums need 8-byte floats.
    pub(crate) fn takes(self, bytes: usize) -> bool {
        !matches!(self, Self::Reduce | Self::AllReduce) || bytes.is_multiple_of(8)
    }

    /// The algorithm, for a message size.
    pub(crate) fn algorithm(self, bytes: usize) -> &'static str {
        match self {
            Self::Gap | Self::Bandwidth => "window",
            Self::Latency => "ping-pong",
            Self::TwoWay => "windows",
            Self::Broadcast | Self::Reduce => "binomial tree",
            Self::AllReduce if bytes > RING_BYTES => "ring",
            Self::AllReduce => "recursive doubling",
            Self::AllToAll => "pairwise exchange",
        }
    }

    /// Messages in a window; 1 without windows.
    pub(crate) fn window(self, bytes: usize) -> usize {
        match self {
            Self::Gap | Self::Bandwidth | Self::TwoWay => (WINDOW_BYTES / bytes).clamp(1, WINDOW),
            _ => 1,
        }
    }

    /// Bytes that one end moves in the measured time: one message, or, for all-to-all, messages to all other ends.
    pub(crate) fn moved_bytes(self, bytes: usize, ends: usize) -> f64 {
        let messages = if self == Self::AllToAll { ends - 1 } else { 1 };
        bytes as f64 * messages as f64
    }

    /// Bytes of an end's input data.
    pub(crate) fn source_bytes(self, bytes: usize, ends: usize) -> usize {
        if self == Self::AllToAll { bytes.saturating_mul(ends) } else { bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_codes_lead_back() {
        for function in Function::ALL {
            let said = function.to_possible_value().map(|v| v.get_name().to_owned());
            assert_eq!(said.as_deref(), Some(function.name()));
            assert_eq!(Function::from_code(function.code()), Some(function));
        }
        assert_eq!(Function::from_code(8), None);
    }

    #[test]
    fn windows_are_of_64_messages_unless_that_is_much() {
        assert_eq!(Function::Bandwidth.window(1), 64);
        assert_eq!(Function::Gap.window(1 << 20), 64);
        assert_eq!(Function::TwoWay.window(16 << 20), 4);
        assert_eq!(Function::Bandwidth.window(1 << 30), 1);
        assert_eq!(Function::Latency.window(1), 1);
    }

    #[test]
    fn sums_are_of_whole_numbers_of_floats() {
        assert!(Function::Reduce.takes(8) && !Function::AllReduce.takes(4) && Function::Broadcast.takes(1));
        assert_eq!(Function::AllToAll.moved_bytes(10, 4), 30.0);
        assert_eq!(Function::AllToAll.source_bytes(10, 4), 40);
        assert_eq!(Function::Reduce.moved_bytes(16, 4), 16.0);
    }
}
