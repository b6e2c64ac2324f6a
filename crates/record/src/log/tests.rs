//! The log returns all events unchanged, from memory and from its file, and derives the machines' states.

use super::*;
use proptest::prelude::*;

fn log() -> EventLog {
    EventLog::new(Instant::now(), tempfile::tempfile().unwrap())
}

fn machine(threads: u16) -> LoggedMachine {
    LoggedMachine { name: "pi".into(), link: "tcp", threads, clocks: [None; 2], lost_records: 0 }
}

fn all(log: &EventLog) -> Vec<LogEvent> {
    let mut events = Vec::new();
    log.read(|event| {
        events.push(*event);
        Ok(())
    })
    .unwrap();
    events
}

fn stands() -> PeerStatus {
    PeerStatus {
        credit_left_bytes: 100,
        in_link_bytes: 0,
        jobs_given: 0,
        tiles_back: 0,
        next: WaitsFor::Nothing,
    }
}

fn any_what() -> impl Strategy<Value = LogEventKind> {
    let frame = (any::<u8>(), any::<u64>(), any::<u64>());
    let frame = frame.prop_map(|(kind, bytes, took_ns)| FrameTransfer { kind, bytes, took_ns });
    let works = [Operation::Multiply, Operation::Add, Operation::Subtract];
    let work = (0usize..4).prop_map(move |i| works.get(i).map_or(Work::Generate, |o| Work::Job(*o)));
    let computed = (work, any::<bool>(), any::<u16>(), any::<[u32; 2]>(), any::<u64>()).prop_map(
        |(work, returns, thread, [matrix, step], took_ns)| LogEventKind::Computed {
            work,
            returns,
            thread,
            matrix,
            step,
            took_ns,
        },
    );
    let stands = (any::<[u64; 2]>(), any::<[u32; 2]>(), 0..WaitsFor::ALL.len()).prop_map(
        |([credit_left_bytes, in_link_bytes], [jobs_given, tiles_back], next)| {
            let next = WaitsFor::ALL[next];
            LogEventKind::Stands(PeerStatus {
                credit_left_bytes,
                in_link_bytes,
                jobs_given,
                tiles_back,
                next,
            })
        },
    );
    prop_oneof![
        (0..Phase::ALL.len()).prop_map(|p| LogEventKind::Phase(Phase::ALL[p])),
        frame.clone().prop_map(LogEventKind::Sent),
        frame.prop_map(LogEventKind::Received),
        computed,
        any::<(u32, u64, u64)>().prop_map(|(matrix, row, col)| LogEventKind::Tile { matrix, row, col }),
        stands
    ]
}

proptest! {
    #[test]
    fn events_in_the_file_are_those_that_were_written(
        events in proptest::collection::vec((any::<u64>(), any::<u16>(), any_what()), 1..30),
    ) {
        let events: Vec<LogEvent> =
            events.into_iter().map(|(at_ns, machine, what)| LogEvent { at_ns, machine, what }).collect();
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        let (some, others) = events.split_at(events.len() / 2);
        spool.write(some).unwrap();
        spool.reader().unwrap().next().unwrap();
        spool.write(others).unwrap();
        let mut reader = spool.reader().unwrap();
        for event in &events {
            prop_assert_eq!(reader.next().unwrap(), Some(*event));
        }
        prop_assert!(reader.next().unwrap().is_none());
    }

    /// Whatever events come in whatever order: every moment has one state.
    #[test]
    fn the_states_of_a_machine_follow_each_other_without_gaps(
        events in proptest::collection::vec((0u64..1000, any_what()), 0..60), threads in 1u16..4,
    ) {
        let mut log = log();
        let machine = log.machine(machine(threads));
        log.append(LogEvent { at_ns: 100, machine, what: LogEventKind::Phase(Phase::Computing) });
        for (at_ns, what) in events {
            if !matches!(what, LogEventKind::Phase(_)) {
                log.append(LogEvent { at_ns, machine, what });
            }
        }
        log.append(LogEvent { at_ns: 900, machine, what: LogEventKind::Phase(Phase::Closing) });
        let story = MachineHistory::of(&log, machine).unwrap();
        let mut at = 100;
        let mut before = None;
        for span in &story.spans {
            prop_assert!(span.start_ns == at && span.end_ns > at && before != Some(span.state));
            (at, before) = (span.end_ns, Some(span.state));
        }
        prop_assert_eq!(at, 900);
        prop_assert_eq!(MachineState::ALL.iter().map(|s| story.total_ns(*s)).sum::<u64>(), 800);
        prop_assert!(story.jobs_waiting.is_sorted_by(|a, b| a.0 < b.0 && a.1 != b.1));
    }
}

#[test]
fn more_events_than_memory_holds_come_back_in_order_and_too_many_are_counted() {
    let mut log = log();
    let event = |at_ns| LogEvent { at_ns, machine: 0, what: LogEventKind::Stands(stands()) };
    let count = CHUNK_EVENTS as u64 * 2 + 77;
    (0..count).for_each(|at| log.append(event(at)));
    assert!(log.chunk.len() < CHUNK_EVENTS);
    for _ in 0..2 {
        let events = all(&log);
        assert_eq!(events.len() as u64, count);
        assert!(events.iter().zip(0..).all(|(e, at)| *e == event(at)));
    }
    log.append(event(count));
    assert_eq!(all(&log).len() as u64, count + 1);
    (log.count, log.dropped) = (EVENTS_MAX, 3);
    log.append(event(0));
    assert_eq!((all(&log).len() as u64, log.dropped()), (count + 1, 4));
}

fn job(at_ns: u64, took_ns: u64, thread: u16, returns: bool) -> (u64, LogEventKind) {
    let work = Work::Job(Operation::Multiply);
    (at_ns, LogEventKind::Computed { work, returns, thread, matrix: 1, step: 0, took_ns })
}

#[test]
fn a_run_gives_the_expected_states() {
    let mut log = log();
    let machine = log.machine(machine(2));
    let stand = |in_link_bytes, jobs_given, tiles_back, next| {
        LogEventKind::Stands(PeerStatus { in_link_bytes, jobs_given, tiles_back, next, ..stands() })
    };
    let events = [
        (0, LogEventKind::Phase(Phase::Opening)),
        (10, LogEventKind::Phase(Phase::Computing)),
        (10, stand(500, 3, 0, WaitsFor::Link)),
        job(20, 20, 0, false),
        job(25, 5, 1, false),
        (30, stand(0, 3, 0, WaitsFor::Credit)),
        job(60, 10, 1, true),
        (50, stand(100, 3, 0, WaitsFor::Tiles)),
        (55, stand(0, 3, 0, WaitsFor::Tiles)),
        (80, stand(0, 3, 1, WaitsFor::Nothing)),
        (100, LogEventKind::Phase(Phase::Closing)),
    ];
    for (at_ns, what) in events {
        log.append(LogEvent { at_ns, machine, what });
    }
    let story = MachineHistory::of(&log, machine).unwrap();
    let told: Vec<_> = story.spans.iter().map(|s| (s.start_ns, s.state)).collect();
    let want = [
        (10, MachineState::WaitingForData),
        (20, MachineState::ComputingPartly),
        (25, MachineState::Computing),
        (30, MachineState::ComputingPartly),
        (40, MachineState::WaitingForCredit),
        (50, MachineState::WaitingForData),
        (60, MachineState::ComputingPartly),
        (70, MachineState::Sending),
        (80, MachineState::Idle),
    ];
    assert_eq!(told, want);
    assert_eq!(story.jobs_waiting, [(10, 3), (20, 2), (25, 1), (60, 0)]);
}

#[test]
fn jobs_in_a_row_do_not_overlap_when_their_clock_went_too_fast() {
    let mut log = log();
    let at = log.began_ns;
    let sample = |at_ns, offset_ns| Some(ClockSample { at_ns, offset_ns, uncertainty_ns: 1 });
    let clocks = [sample(at, 0), sample(at + 1_000_000, -70_000)];
    let machine = log.machine(LoggedMachine { clocks, ..machine(1) });
    for i in 0..100 {
        let (at_ns, what) = job(i * 10_007, 10_007, 0, false);
        log.append(LogEvent { at_ns, machine, what });
    }
    let mut end = 0;
    let mut last = 0;
    for event in all(&log) {
        let LogEventKind::Computed { took_ns, .. } = event.what else { unreachable!() };
        assert_eq!(event.at_ns, end);
        end = event.at_ns + took_ns;
        last = took_ns;
    }
    assert_eq!(end, 1_000_700 - 70_000);
    assert!((9_000..10_007).contains(&last), "{last}");
}
