//! What is measured of a link: the eight functions that MPI's users know, and how much each of them moves.
//!
//! Invariants: a function and its algorithm are names that JSON, tables and scripts share; the sizes are those of OSU's
//! benchmarks: of one message, and of what each end gives to each other in an all-to-all.

use bramble_link::CHUNK_BYTES_MAX;
use clap::ValueEnum;

/// Messages that are sent back to back before an acknowledgement, as OSU has it.
const WINDOW: usize = 64;
/// Bytes of such a window at most, or one message.
const WINDOW_BYTES: usize = 64 << 20;
/// An all-reduce of more bytes goes round a ring, which moves less; one of fewer goes in fewer steps.
const RING_BYTES: usize = 64 << 10;
const _: () = assert!(RING_BYTES <= CHUNK_BYTES_MAX);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Function {
    /// How long a sender is held by one message
    Gap,
    /// Half of a round trip
    #[value(alias = "round-trip")]
    Latency,
    /// Messages one way, back to back
    Bandwidth,
    /// The same both ways at once
    TwoWay,
    /// From one end to all
    Broadcast,
    /// The sum of all ends' numbers at one
    Reduce,
    /// The same at all
    AllReduce,
    /// From each end another message to each other
    AllToAll,
}

impl Function {
    /// All, in the order in which they are measured.
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

    /// As on the command line.
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

    /// Its place among all, for the ends.
    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().position(|f| *f == self).and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
    }

    /// The function of a place.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether it is of two ends, always.
    pub(crate) fn is_of_pairs(self) -> bool {
        matches!(self, Self::Gap | Self::Latency | Self::Bandwidth | Self::TwoWay)
    }

    /// Whether people ask for its bytes a second, not its time.
    pub(crate) fn is_a_rate(self) -> bool {
        matches!(self, Self::Bandwidth | Self::TwoWay)
    }

    /// Whether a message can have so many bytes: sums are of 8-byte floats.
    pub(crate) fn takes(self, bytes: usize) -> bool {
        !matches!(self, Self::Reduce | Self::AllReduce) || bytes.is_multiple_of(8)
    }

    /// How it is done.
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

    /// Messages of a window; 1 where there is none.
    pub(crate) fn window(self, bytes: usize) -> usize {
        match self {
            Self::Gap | Self::Bandwidth | Self::TwoWay => (WINDOW_BYTES / bytes).clamp(1, WINDOW),
            _ => 1,
        }
    }

    /// Bytes that one end gives or gets in the time that is told: of a message, or in an all-to-all of those to all others.
    pub(crate) fn moved_bytes(self, bytes: usize, ends: usize) -> f64 {
        let messages = if self == Self::AllToAll { ends - 1 } else { 1 };
        bytes as f64 * messages as f64
    }

    /// Bytes of what an end has to give.
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
