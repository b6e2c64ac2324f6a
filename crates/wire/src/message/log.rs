//! What a worker reports beside results: when its jobs ran, and readings of its clock.
//!
//! Place in the flow: the hello says what the primary asks for (`Wants`); then batches of records travel to
//! the primary, whose event log keeps them.
//!
//! Invariants: a batch has at least one record and at most `LOG_RECORDS_MAX`. Times are readings of the
//! worker's own clock, whose zero has no meaning for other machines. A heartbeat answer has a reading of that
//! clock, so the primary can convert the times.

use super::{FieldReader, FieldWriter, Operation};
use crate::ProtocolError;
use crate::limits::{CLOCK_NS_MAX, LOG_RECORDS_MAX};
use alloc::format;
use alloc::vec::Vec;

/// What a primary asks a worker to report; one byte of the hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// When each job ran (`Log` messages).
    pub log: bool,
    /// What the processor time went to (in the goodbye).
    pub account: bool,
    /// The rates of the tasks of a factorisation (in the welcome), if they are worth the time.
    pub task_rates: bool,
}

impl Wants {
    pub(super) fn code(self) -> u8 {
        u8::from(self.log) | u8::from(self.account) << 1 | u8::from(self.task_rates) << 2
    }

    pub(super) fn from_code(code: u8) -> Result<Self, ProtocolError> {
        match code {
            0..=7 => Ok(Self { log: code & 1 == 1, account: code & 2 == 2, task_rates: code & 4 == 4 }),
            _ => Err(ProtocolError::new(format!("a wish of unknown kind {code}"))),
        }
    }
}

/// Activity of a compute thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A job.
    Job(Operation),
    /// Generating the elements of an operand.
    Generate,
}

/// One activity of one compute thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRecord {
    /// Kind of activity.
    pub work: Work,
    /// Whether the tile was sent back after it.
    pub returns: bool,
    /// The thread, counted from 0.
    pub thread: u16,
    /// Id of the matrix that was written.
    pub matrix: u32,
    /// The job's step; 0 for activities other than jobs.
    pub step: u32,
    /// When it began, on the worker's clock.
    pub start_ns: u64,
    /// Its duration.
    pub took_ns: u64,
}

/// A batch of records, worker to primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// Records of this session dropped so far, because they were produced faster than the link took them.
    pub dropped: u64,
    /// The records; those of one thread in the order of time.
    pub records: Vec<WorkRecord>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// Nonce of the request.
    pub nonce: u64,
    /// The worker's clock when it answered.
    pub clock_ns: u64,
}

impl Pong {
    /// Encodes the head.
    pub fn encode(self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.nonce);
        w.u64(self.clock_ns);
        w.finish()
    }

    /// Decodes an answer.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (nonce, clock_ns) = (r.u64()?, r.u64()?);
        r.end()?;
        if clock_ns > CLOCK_NS_MAX {
            return Err(ProtocolError::new("a clock that has run for more than a century"));
        }
        Ok(Self { nonce, clock_ns })
    }
}

impl LogHead {
    /// Encodes the head. Panics if there are more records than a batch may have.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.records.len() <= LOG_RECORDS_MAX, "a batch of {} records", self.records.len());
        let mut w = FieldWriter::default();
        w.u64(self.dropped);
        w.count(self.records.len());
        for record in &self.records {
            w.u8(match record.work {
                Work::Job(operation) => operation.code(),
                Work::Generate => GENERATE,
            });
            w.u8(u8::from(record.returns));
            w.u16(record.thread);
            w.u32(record.matrix);
            w.u32(record.step);
            w.u64(record.start_ns);
            w.u64(record.took_ns);
        }
        w.finish()
    }

    /// Decodes a batch.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let dropped = r.u64()?;
        let count = usize::from(r.u16()?);
        if !(1..=LOG_RECORDS_MAX).contains(&count) {
            return Err(ProtocolError::new(format!("a log of {count} records")));
        }
        let mut records = Vec::new();
        for _ in 0..count {
            records.push(record(&mut r)?);
        }
        r.end()?;
        Ok(Self { dropped, records })
    }
}

/// Code of `Generate`, after those of the operations.
const GENERATE: u8 = 3;

fn record(r: &mut FieldReader<'_>) -> Result<WorkRecord, ProtocolError> {
    let work = match r.u8()? {
        GENERATE => Work::Generate,
        code => {
            let operation = Operation::from_code(code);
            Work::Job(operation.ok_or_else(|| ProtocolError::new(format!("work of unknown kind {code}")))?)
        }
    };
    let returns = match (r.u8()?, work) {
        (0, _) => false,
        (1, Work::Job(_)) => true,
        _ => return Err(ProtocolError::new("a record of something that jobs do not do")),
    };
    let (thread, matrix, step) = (r.u16()?, r.u32()?, r.u32()?);
    let (start_ns, took_ns) = (r.u64()?, r.u64()?);
    if start_ns > CLOCK_NS_MAX || took_ns > CLOCK_NS_MAX {
        return Err(ProtocolError::new("a job that took more than a century"));
    }
    Ok(WorkRecord { work, returns, thread, matrix, step, start_ns, took_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HEAD_BYTES_MAX;
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = WorkRecord> {
        let times = (0..=CLOCK_NS_MAX, 0..=CLOCK_NS_MAX);
        (0usize..4, any::<bool>(), any::<u16>(), any::<[u32; 2]>(), times).prop_map(
            |(work, returns, thread, [matrix, step], (start_ns, took_ns))| {
                let jobs = [Operation::Multiply, Operation::Add, Operation::Subtract];
                let work = jobs.get(work).map_or(Work::Generate, |o| Work::Job(*o));
                let returns = returns && work != Work::Generate;
                WorkRecord { work, returns, thread, matrix, step, start_ns, took_ns }
            },
        )
    }

    proptest! {
        #[test]
        fn batches_and_answers_round_trip(
            dropped in any::<u64>(),
            records in proptest::collection::vec(any_record(), 1..20),
            nonce in any::<u64>(),
            clock_ns in 0..=CLOCK_NS_MAX,
        ) {
            let log = LogHead { dropped, records };
            prop_assert_eq!(LogHead::decode(&log.encode()).unwrap(), log);
            let pong = Pong { nonce, clock_ns };
            prop_assert_eq!(Pong::decode(&pong.encode()).unwrap(), pong);
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(log) = LogHead::decode(&bytes) { prop_assert_eq!(log.encode(), bytes.clone()); }
            if let Ok(pong) = Pong::decode(&bytes) { prop_assert_eq!(pong.encode(), bytes.clone()); }
        }
    }

    fn one() -> WorkRecord {
        let work = Work::Job(Operation::Multiply);
        WorkRecord { work, returns: true, thread: 1, matrix: 2, step: 3, start_ns: 4, took_ns: 5 }
    }

    #[test]
    fn a_full_batch_fits_a_frame_and_more_is_refused() {
        let full = LogHead { dropped: 9, records: vec![one(); LOG_RECORDS_MAX] };
        let bytes = full.encode();
        assert!(bytes.len() <= HEAD_BYTES_MAX);
        assert_eq!(LogHead::decode(&bytes), Ok(full));
        let empty = LogHead { dropped: 9, records: Vec::new() };
        assert!(LogHead::decode(&empty.encode()).is_err());
        let mut more = [&bytes[..], &bytes[10..38]].concat();
        more[8..10].copy_from_slice(&u16::try_from(LOG_RECORDS_MAX + 1).unwrap().to_le_bytes());
        assert!(LogHead::decode(&more).is_err());
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let good = LogHead { dropped: 0, records: vec![one()] }.encode();
        for (at, byte) in [(10, 4), (11, 2), (29, 0x80), (37, 0x80)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(LogHead::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Wants::from_code(8).is_err());
        for code in 0..8 {
            assert_eq!(Wants::from_code(code).map(Wants::code), Ok(code));
        }
    }
}
