//! The input of a resumed run: the plan and the journal of an earlier run. The first byte picks the kind of the rest.
//!
//! Promise: any bytes give a journal or an error; a decoded journal encodes to the very same bytes, and only whole intervals
//! count. Appending an interval gives a journal that decodes with one interval more.

use crate::memory::within;
use bramble_matrix::{DType, Digest128};
use bramble_plan::{LinkRate, Machine, OperandSource, Plan, PlanOptions, Problem, TileSize, decide};
use bramble_schedule::journal::{
    Head, Journal, JournalAction, JournalEvent, JournalLog, RECORD_BYTES, read, seal,
};
use std::time::Duration;

/// Tables of a plan and of tiles take a few times the memory of their bytes.
const BOUND_BYTES: usize = 1 << 20;

/// See the head of this file.
pub fn journal(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    within(BOUND_BYTES, || match which % 4 {
        0 => whole(rest),
        1 => plan(rest),
        2 => whole(&seal(rest)),
        _ => intervals(rest),
    });
}

fn plan(bytes: &[u8]) {
    match Plan::decode(bytes) {
        Ok(plan) => assert_eq!(plan.encode(), bytes, "one plan has one encoding"),
        Err(e) => assert!(e.to_string().len() < 1024, "{e}"),
    }
}

fn whole(bytes: &[u8]) {
    match read(bytes) {
        Ok(journal) => check(&journal, bytes),
        Err(e) => assert!(e.to_string().len() < 1024, "{e}"),
    }
}

/// A valid head, then records; the first byte of each piece decides whether its interval's end is right.
fn intervals(mut bytes: &[u8]) {
    let (mut log, mut file) = JournalLog::new(&head(), Duration::ZERO);
    let mut now = Duration::ZERO;
    while let Some((how, rest)) = bytes.split_first() {
        now += Duration::from_secs(1000);
        let (front, rest) = rest.split_at(rest.len().min(usize::from(how % 3) * RECORD_BYTES));
        bytes = rest;
        if how % 5 > 0 {
            file.extend(front);
            continue;
        }
        for tile in front.iter().map(|byte| u64::from(byte % 35)) {
            let tile = JournalEvent::Committed { region: 0, tile, digest: Digest128([*how; 16]) };
            file.extend(appended(log.handle(tile, Duration::ZERO)));
        }
        file.extend(interval(&mut log, now));
    }
    whole(&file);
}

/// The bytes that an interval appends: its records, and its end.
fn interval(log: &mut JournalLog, now: Duration) -> Vec<u8> {
    let actions = log.handle(JournalEvent::Tick, now);
    let syncs = actions.contains(&JournalAction::SyncData);
    let mut bytes = appended(actions);
    if syncs {
        bytes.extend(appended(log.handle(JournalEvent::DataSynced, now)));
        bytes.extend(appended(log.handle(JournalEvent::LogSynced, now)));
    }
    bytes
}

/// The bytes that these actions append.
fn appended(actions: Vec<JournalAction>) -> Vec<u8> {
    let bytes = actions.into_iter().filter_map(|action| match action {
        JournalAction::Append(bytes) => Some(bytes),
        JournalAction::SyncData | JournalAction::SyncLog => None,
    });
    bytes.flatten().collect()
}

fn check(journal: &Journal, bytes: &[u8]) {
    let head = journal.head.encode();
    // Version 1 is read and no longer written: its head has another version and so another digest.
    let is_former = bytes[8..10] == [1, 0];
    assert!(is_former || head == bytes[..head.len()], "one head has one encoding");
    let valid = usize::try_from(journal.valid_bytes).unwrap_or(usize::MAX);
    assert!(valid <= bytes.len() && (valid - head.len()).is_multiple_of(RECORD_BYTES));
    assert!(journal.tiles.len() <= (valid - head.len()) / RECORD_BYTES);
    let regions = &journal.head.plan.regions;
    assert!(journal.tiles.keys().all(|(region, tile)| *tile < regions[*region].tiles()));
    let Some(region) = regions.iter().position(|r| r.tiles() > 0) else { return };
    let mut log = JournalLog::resumed(journal, Duration::ZERO);
    let (digest, now) = (Digest128([7; 16]), Duration::from_secs(9));
    let records = appended(log.handle(JournalEvent::Committed { region, tile: 0, digest }, Duration::ZERO));
    let file = [&bytes[..valid], &records, &interval(&mut log, now)].concat();
    let Ok(longer) = read(&file) else { panic!("a journal with one more interval cannot be read") };
    assert_eq!(longer.tiles.get(&(region, 0)), Some(&digest));
    assert_eq!(longer.valid_bytes, file.len() as u64);
}

fn head() -> Head {
    let p = Problem {
        m: 50,
        n: 34,
        k: 20,
        dtype: DType::F64,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
    };
    let machine = Machine {
        name: "w".to_owned(),
        threads: 1,
        gflops: 1.0,
        peak_gflops: 1.0,
        memory_bytes: 1 << 30,
        link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    };
    let cut = TileSize { tile: Some(8), depth: Some(8) };
    let Ok(decision) = decide(&p, cut, &machine, std::slice::from_ref(&machine), &PlanOptions::AUTO) else {
        panic!("a small product must fit this machine");
    };
    let (a, b) = (Digest128([1; 16]), Digest128([2; 16]));
    Head {
        alpha: 1.5,
        beta: 0.0,
        a,
        b,
        old_c: None,
        kernel: "simd".to_owned(),
        plan: decision.plan.unpredicted(),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let (mut log, mut file) = JournalLog::new(&head(), Duration::ZERO);
    let inner = file[14..file.len() - 16].to_vec();
    for at in 1..4 {
        let now = Duration::from_secs(100 * at);
        let tile = JournalEvent::Committed { region: 0, tile: at, digest: Digest128([5; 16]) };
        file.extend(appended(log.handle(tile, Duration::ZERO)));
        file.extend(interval(&mut log, now));
    }
    let intervals = [&[5, 3, 4], &[1u8; 70][..], &[10, 9, 1]].concat();
    let seeds = [(0, file), (1, head().plan.encode()), (2, inner), (3, intervals)];
    seeds.into_iter().map(|(which, bytes)| [vec![which], bytes].concat()).collect()
}
