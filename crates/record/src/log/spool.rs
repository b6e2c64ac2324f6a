//! Events in a file, 40 bytes each. The file does not outlive the process.
//!
//! Invariant: events are read unchanged and in the order of writing. The format is private and may change with any version.

use super::{FrameTransfer, LogEvent, LogEventKind, Phase};
use bramble_schedule::primary::{PeerStatus, WaitsFor};
use bramble_wire::message::{Operation, Work};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

/// Bytes of an event.
const EVENT_BYTES: usize = 40;

/// See the head of this file.
pub(super) struct Spool {
    file: File,
    events: u64,
}

impl Spool {
    pub(super) fn new(file: File) -> Self {
        Self { file, events: 0 }
    }

    pub(super) fn write(&mut self, events: &[LogEvent]) -> io::Result<()> {
        let bytes: Vec<u8> = events.iter().flat_map(encode).collect();
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(&bytes)?;
        self.events += u64::try_from(events.len()).unwrap_or(0);
        Ok(())
    }

    /// Reads from the first event.
    pub(super) fn reader(&self) -> io::Result<SpoolReader<'_>> {
        (&self.file).seek(SeekFrom::Start(0))?;
        Ok(SpoolReader { file: BufReader::with_capacity(1 << 16, &self.file), left: self.events })
    }
}

/// See `Spool::reader`.
pub(super) struct SpoolReader<'a> {
    file: BufReader<&'a File>,
    left: u64,
}

impl SpoolReader<'_> {
    /// The next event, if there is one.
    pub(super) fn next(&mut self) -> io::Result<Option<LogEvent>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let mut bytes = [0; EVENT_BYTES];
        self.file.read_exact(&mut bytes)?;
        let event = decode(&bytes);
        event.map(Some).ok_or_else(|| io::Error::other("another process has changed the event log"))
    }
}

/// The fields of an event: its code, one byte, two bytes, and three numbers.
struct Fields {
    code: u8,
    small: u8,
    middle: u16,
    numbers: [u64; 3],
}

fn encode(event: &LogEvent) -> [u8; EVENT_BYTES] {
    let fields = match event.what {
        LogEventKind::Phase(phase) => {
            let at = Phase::ALL.iter().position(|p| *p == phase).and_then(|at| u8::try_from(at).ok());
            Fields { code: 0, small: at.unwrap_or(u8::MAX), middle: 0, numbers: [0; 3] }
        }
        LogEventKind::Sent(f) => {
            Fields { code: 1, small: f.kind, middle: 0, numbers: [f.bytes, f.took_ns, 0] }
        }
        LogEventKind::Received(f) => {
            Fields { code: 2, small: f.kind, middle: 0, numbers: [f.bytes, f.took_ns, 0] }
        }
        LogEventKind::Computed { work, returns, thread, matrix, step, took_ns } => {
            let work = match work {
                Work::Job(Operation::Multiply) => 0,
                Work::Job(Operation::Add) => 1,
                Work::Job(Operation::Subtract) => 2,
                Work::Generate => 3,
            };
            let names = u64::from(matrix) << 32 | u64::from(step);
            Fields {
                code: 3,
                small: work | u8::from(returns) << 2,
                middle: thread,
                numbers: [names, took_ns, 0],
            }
        }
        LogEventKind::Tile { matrix, row, col } => {
            Fields { code: 5, small: 0, middle: 0, numbers: [row, col, u64::from(matrix)] }
        }
        LogEventKind::Stands(s) => {
            let next = WaitsFor::ALL.iter().position(|n| *n == s.next).and_then(|at| u8::try_from(at).ok());
            let counts = u64::from(s.jobs_given) << 32 | u64::from(s.tiles_back);
            let numbers = [s.credit_left_bytes, s.in_link_bytes, counts];
            Fields { code: 4, small: next.unwrap_or(u8::MAX), middle: 0, numbers }
        }
    };
    let mut out = [0; EVENT_BYTES];
    out[..8].copy_from_slice(&event.at_ns.to_le_bytes());
    out[8..10].copy_from_slice(&event.machine.to_le_bytes());
    (out[10], out[11]) = (fields.code, fields.small);
    out[12..14].copy_from_slice(&fields.middle.to_le_bytes());
    for (place, number) in out[16..].chunks_exact_mut(8).zip(fields.numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    out
}

fn decode(bytes: &[u8; EVENT_BYTES]) -> Option<LogEvent> {
    let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let number = |at: usize| bytes[at..].first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
    let (small, middle, numbers) = (bytes[11], two(12), [number(16), number(24), number(32)]);
    let high = |x: u64| u32::try_from(x >> 32).unwrap_or(0);
    let low = |x: u64| u32::try_from(x & 0xffff_ffff).unwrap_or(0);
    let frame = FrameTransfer { kind: small, bytes: numbers[0], took_ns: numbers[1] };
    let what = match bytes[10] {
        0 => LogEventKind::Phase(*Phase::ALL.get(usize::from(small))?),
        1 => LogEventKind::Sent(frame),
        2 => LogEventKind::Received(frame),
        3 => LogEventKind::Computed {
            work: match small & 3 {
                0 => Work::Job(Operation::Multiply),
                1 => Work::Job(Operation::Add),
                2 => Work::Job(Operation::Subtract),
                _ => Work::Generate,
            },
            returns: small & 4 != 0,
            thread: middle,
            matrix: high(numbers[0]),
            step: low(numbers[0]),
            took_ns: numbers[1],
        },
        4 => LogEventKind::Stands(PeerStatus {
            credit_left_bytes: numbers[0],
            in_link_bytes: numbers[1],
            jobs_given: high(numbers[2]),
            tiles_back: low(numbers[2]),
            next: *WaitsFor::ALL.get(usize::from(small))?,
        }),
        5 => LogEventKind::Tile { matrix: low(numbers[2]), row: numbers[0], col: numbers[1] },
        _ => return None,
    };
    Some(LogEvent { at_ns: number(0), machine: two(8), what })
}
