//! Writes the event log while a product runs: the shell calls it wherever an event happens.
//!
//! Invariants: without a log nothing is done. Workers are not trusted: records that were not asked for, or of more jobs than
//! the worker was given, break the protocol.

use super::{ClockSample, EventLog, FrameTransfer, LogEvent, LogEventKind, LoggedMachine, NOBODY, Phase, ns};
use bramble_link::clock_ns;
use bramble_matrix::number::to_u64;
use bramble_schedule::primary::{PeerStatus, Primary, ResultDestination};
use bramble_wire::ProtocolError;
use bramble_wire::message::{LogHead, Pong, ResultHead, StoreHead, encode_number};
use std::collections::BTreeMap;
use std::time::Instant;

/// Pings with larger nonces ask for the clock; the schedule counts its own from 1.
const CLOCK_NONCES: u64 = 1 << 63;
/// How often a clock is asked at the end. On an idle link answers differ little.
const QUESTIONS: u64 = 3;

/// See the head of this file.
#[derive(Default)]
pub struct EventRecorder(Option<Box<Recording>>);

struct Recording {
    log: EventLog,
    peers: Vec<PeerRecords>,
}

/// Records of one peer.
struct PeerRecords {
    /// `NOBODY` for a reserve without work, which is no machine of the product.
    machine: u16,
    reserve: Option<LoggedMachine>,
    stands: Option<PeerStatus>,
    /// When the head of the frame arrived that is being received.
    arriving: Option<Instant>,
    /// Most records that the worker can have made: jobs, and matrices that it had to generate.
    work_given: u64,
    work_seen: u64,
    /// When its clock was asked, by nonce.
    asked: BTreeMap<u64, u64>,
}

impl EventRecorder {
    /// Writes to this log; without one, nothing is recorded.
    pub fn new(log: Option<EventLog>) -> Self {
        Self(log.map(|log| Box::new(Recording { log, peers: Vec::new() })))
    }

    /// Whether there is a log.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the log.
    pub fn into_log(self) -> Option<EventLog> {
        self.0.map(|recording| recording.log)
    }

    /// A phase of the product begins.
    pub fn phase(&mut self, phase: Phase) {
        if let Some(recording) = &mut self.0 {
            recording.log.phase(phase);
        }
    }

    /// Adds machines in the order of the plan; those after the first `working` appear in the log only once they get work.
    pub fn peers(&mut self, machines: impl Iterator<Item = LoggedMachine>, working: usize) {
        let Some(recording) = &mut self.0 else { return };
        for (at, machine) in machines.enumerate() {
            let (machine, reserve) = match at < working {
                true => (recording.log.machine(machine), None),
                false => (NOBODY, Some(machine)),
            };
            recording.peers.push(PeerRecords {
                machine,
                reserve,
                stands: None,
                arriving: None,
                work_given: 0,
                work_seen: 0,
                asked: BTreeMap::new(),
            });
        }
    }

    /// A store is sent to a peer.
    pub fn store_sent(&mut self, peer: usize, store: &StoreHead) {
        let Some(recording) = &mut self.0 else { return };
        if let Some(machine) = recording.peers[peer].reserve.take() {
            recording.peers[peer].machine = recording.log.machine(machine);
        }
        recording.peers[peer].work_given += to_u64(store.jobs.len() + store.matrices.len());
    }

    /// Records changes of the schedule's status of each peer.
    pub fn record_status(&mut self, state: &Primary) {
        let Some(recording) = &mut self.0 else { return };
        let at_ns = recording.log.time_ns(Instant::now());
        for (index, book) in recording.peers.iter_mut().enumerate() {
            let stands = state.peer_status(index);
            if book.stands.replace(stands) != Some(stands) {
                recording.log.append(LogEvent {
                    at_ns,
                    machine: book.machine,
                    what: LogEventKind::Stands(stands),
                });
            }
        }
    }

    /// A link has taken a frame; it was offered the frame at `began`.
    pub fn sent(&mut self, peer: usize, kind: u8, bytes: usize, began: Instant) {
        let Some(recording) = &mut self.0 else { return };
        let frame = FrameTransfer { kind, bytes: to_u64(bytes), took_ns: ns(began.elapsed()) };
        recording.frame(peer, began, LogEventKind::Sent(frame));
    }

    /// The head of a frame has arrived, its body is being received.
    pub fn frame_started(&mut self, peer: usize) {
        if let Some(recording) = &mut self.0 {
            recording.peers[peer].arriving = Some(Instant::now());
        }
    }

    /// A frame has been received.
    pub fn received(&mut self, peer: usize, kind: u8, bytes: u64) {
        let Some(recording) = &mut self.0 else { return };
        let began = recording.peers[peer].arriving.take().unwrap_or_else(Instant::now);
        let frame = FrameTransfer { kind, bytes, took_ns: ns(began.elapsed()) };
        recording.frame(peer, began, LogEventKind::Received(frame));
    }

    /// Rows of a tile have landed; `place` is asked for the destination of the first.
    pub fn tile_landed(
        &mut self,
        peer: usize,
        head: &ResultHead,
        place: impl FnOnce() -> Option<ResultDestination>,
    ) {
        let Some(recording) = &mut self.0 else { return };
        if head.first_line == 0
            && let Some(ResultDestination { rect, .. }) = place()
        {
            let at_ns = recording.log.time_ns(Instant::now());
            let what = LogEventKind::Tile { matrix: head.c, row: rect.rows.start, col: rect.cols.start };
            recording.log.append(LogEvent { at_ns, machine: recording.peers[peer].machine, what });
        }
    }

    /// Records jobs that a worker reports.
    pub fn add_job_records(&mut self, peer: usize, head: &[u8]) -> Result<(), ProtocolError> {
        let Some(recording) = &mut self.0 else {
            return Err(ProtocolError::new("it reports jobs, and no log was asked for"));
        };
        let batch = LogHead::decode(head)?;
        let (book, log) = (&mut recording.peers[peer], &mut recording.log);
        book.work_seen += to_u64(batch.records.len());
        if book.work_seen > book.work_given {
            return Err(ProtocolError::new("it reports more jobs than it was given"));
        }
        if let Some(machine) = log.machines.get_mut(usize::from(book.machine)) {
            machine.lost_records = batch.dropped;
        }
        for record in batch.records {
            let threads = log.machines.get(usize::from(book.machine)).map_or(0, |m| m.threads);
            if record.thread >= threads {
                return Err(ProtocolError::new(format!(
                    "it reports a job of thread {}, which it does not have",
                    record.thread
                )));
            }
            let what = LogEventKind::Computed {
                work: record.work,
                returns: record.returns,
                thread: record.thread,
                matrix: record.matrix,
                step: record.step,
                took_ns: record.took_ns,
            };
            let at_ns = log.time_of_clock(book.machine, record.start_ns);
            log.append(LogEvent { at_ns, machine: book.machine, what });
        }
        Ok(())
    }

    /// Heads of pings that ask a peer for its clock; none if there is no log or the peer has the primary's clock.
    pub fn clock_requests(&mut self, peer: usize) -> Vec<Vec<u8>> {
        let Some(recording) = &mut self.0 else { return Vec::new() };
        let book = &mut recording.peers[peer];
        let machine = recording.log.machines.get(usize::from(book.machine));
        if machine.is_none_or(|m| m.clocks[0].is_none_or(|clock| clock.uncertainty_ns == 0)) {
            return Vec::new();
        }
        let nonces = (CLOCK_NONCES..).take(usize::try_from(QUESTIONS).unwrap_or(0));
        nonces
            .map(|nonce| {
                book.asked.insert(nonce, clock_ns());
                encode_number(nonce)
            })
            .collect()
    }

    /// An answer to any ping.
    pub fn clock_answer(&mut self, peer: usize, pong: Pong) {
        let Some(recording) = &mut self.0 else { return };
        let book = &mut recording.peers[peer];
        let Some(asked_ns) = book.asked.remove(&pong.nonce) else { return };
        let sample = ClockSample::of(asked_ns, clock_ns(), pong.clock_ns);
        if let Some(machine) = recording.log.machines.get_mut(usize::from(book.machine)) {
            machine.clocks[1] = Some(ClockSample::more_accurate(machine.clocks[1], sample));
        }
    }
}

impl Recording {
    fn frame(&mut self, peer: usize, began: Instant, what: LogEventKind) {
        let at_ns = self.log.time_ns(began);
        let machine = self.peers[peer].machine;
        self.log.append(LogEvent { at_ns, machine, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_wire::message::{Operation, Work, WorkRecord};

    fn batch(thread: u16, count: usize) -> Vec<u8> {
        let (work, start_ns) = (Work::Job(Operation::Multiply), clock_ns());
        let record = WorkRecord { work, returns: false, thread, matrix: 1, step: 0, start_ns, took_ns: 9 };
        LogHead { dropped: 2, records: vec![record; count] }.encode()
    }

    fn recorder() -> EventRecorder {
        let mut log = EventLog::new(Instant::now(), tempfile::tempfile().unwrap());
        let clocks = [Some(ClockSample::of(10, 20, 3)), None];
        let machine = LoggedMachine { name: "pi".into(), link: "tcp", threads: 2, clocks, lost_records: 0 };
        let machine = log.machine(machine);
        let book = PeerRecords {
            machine,
            reserve: None,
            stands: None,
            arriving: None,
            work_given: 3,
            work_seen: 0,
            asked: BTreeMap::new(),
        };
        EventRecorder(Some(Box::new(Recording { log, peers: vec![book] })))
    }

    #[test]
    fn unrequested_and_impossible_records_are_refused() {
        assert!(EventRecorder::default().add_job_records(0, &batch(0, 1)).is_err());
        assert!(recorder().add_job_records(0, &batch(2, 1)).is_err(), "a thread that it does not have");
        assert!(recorder().add_job_records(0, &batch(0, 4)).is_err(), "more than it was given");
        assert!(recorder().add_job_records(0, &[0; 9]).is_err());
        let mut good = recorder();
        assert!(
            good.add_job_records(0, &batch(1, 2)).is_ok() && good.add_job_records(0, &batch(0, 1)).is_ok()
        );
        assert!(good.add_job_records(0, &batch(0, 1)).is_err());
        let mut count = 0;
        let log = good.into_log().unwrap();
        log.read(|_| {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!((count, log.machines()[0].lost_records), (3, 2));
    }

    #[test]
    fn a_clock_is_sampled_a_few_times_and_the_best_sample_counts() {
        assert!(EventRecorder::default().clock_requests(0).is_empty());
        let mut recorder = recorder();
        let nonces: Vec<u64> = recorder
            .clock_requests(0)
            .iter()
            .map(|q| u64::from_le_bytes(q[..].try_into().unwrap()))
            .collect();
        assert_eq!(nonces.len(), 3);
        let clock = |nonce| Pong { nonce, clock_ns: clock_ns() };
        recorder.clock_answer(0, clock(1));
        assert_eq!(recorder.0.as_ref().unwrap().log.machines()[0].clocks[1], None, "the schedule's own ping");
        nonces.iter().for_each(|nonce| recorder.clock_answer(0, clock(*nonce)));
        let last = recorder.0.as_ref().unwrap().log.machines()[0].clocks[1].unwrap();
        assert!(last.offset_ns.unsigned_abs() <= last.uncertainty_ns, "it is one clock: {last:?}");
    }
}
