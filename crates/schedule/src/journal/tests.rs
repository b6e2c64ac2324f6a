//! Tests of the journal on a disk that loses unsynced data: after any crash, tiles below the watermark are
//! present and right, and tiles recorded by a killed process are present, too.

use super::*;
use bramble_base::DType;
use bramble_plan::{LinkRate, Machine, OperandSource, Plan, PlanOptions, Problem, TileSize, decide};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pages of each tile.
const PAGES: usize = 3;

fn plan(strategy: &str) -> Plan {
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
        name: "w".into(),
        threads: 1,
        gflops: 1.0,
        peak_gflops: 1.0,
        memory_bytes: 1 << 30,
        link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    };
    let wish = PlanOptions { strategy: Some(strategy.parse().unwrap()), ..PlanOptions::AUTO };
    let cut = TileSize { tile: Some(8), depth: Some(8) };
    decide(&p, cut, &machine, std::slice::from_ref(&machine), &wish).unwrap().plan.unpredicted()
}

fn head(strategy: &str) -> Head {
    let (a, b) = (Digest128([1; 16]), Digest128([2; 16]));
    Head { alpha: 1.5, beta: 0.0, a, b, old_c: None, kernel: "simd, fma".into(), plan: plan(strategy) }
}

type Tile = (usize, u64);

/// The right content of a page of a tile; never 0.
fn right(tile: Tile, page: usize) -> u64 {
    1 + (tile.0 as u64 * 1000 + tile.1) * PAGES as u64 + page as u64
}

fn digest_of(pages: &[u64; PAGES]) -> Digest128 {
    let mut digester = Digester::default();
    pages.iter().for_each(|page| digester.update(&page.to_le_bytes()));
    digester.digest()
}

fn is_right(disk: &Disk, tile: Tile) -> bool {
    disk.pages(tile) == std::array::from_fn(|page| right(tile, page))
}

/// Two files: pages that are written to memory and reach the disk in any order, at the latest when synced;
/// and appended bytes.
#[derive(Default)]
struct Disk {
    memory: BTreeMap<(Tile, usize), u64>,
    disk: BTreeMap<(Tile, usize), u64>,
    log: Vec<u8>,
    log_synced: usize,
}

impl Disk {
    fn pages(&self, tile: Tile) -> [u64; PAGES] {
        std::array::from_fn(|page| self.memory.get(&(tile, page)).copied().unwrap_or(0))
    }

    /// The machine crashes: some unsynced pages are on disk, and some of the appended bytes, or zeros.
    fn crash(&mut self, choose: &mut impl FnMut(usize) -> usize) {
        for (place, page) in &self.memory {
            if choose(2) == 1 {
                self.disk.insert(*place, *page);
            }
        }
        self.memory = self.disk.clone();
        let unsynced = self.log.len() - self.log_synced;
        self.log.truncate(self.log_synced + choose(unsynced + 1));
        let zeros = [0, 5, RECORD_BYTES, 100][choose(4)];
        self.log.extend(vec![0; zeros]);
        self.log_synced = self.log.len();
    }
}

/// Opens the journal at the start of a run: the journal, the tiles that the run need not compute, and the
/// tiles that must not be lost, because their interval had ended. `None` if the machine crashes at once.
fn opened(
    disk: &mut Disk,
    head: &Head,
    choose: &mut impl FnMut(usize) -> usize,
    dies: bool,
) -> Option<(JournalLog, BTreeSet<Tile>, BTreeSet<Tile>)> {
    let (mut has, mut there): (BTreeSet<Tile>, BTreeSet<Tile>) = Default::default();
    let log = match read(&disk.log) {
        Ok(mut journal) => {
            for (tile, digest) in &journal.tiles {
                let is_there = digest_of(&disk.pages(*tile)) == *digest;
                assert!(is_there || journal.unsynced.contains(tile), "{tile:?} is wrong, and has a mark");
                assert!(!is_there || is_right(disk, *tile), "{tile:?} passes, and is wrong");
                if is_there {
                    has.insert(*tile);
                }
                if !journal.unsynced.contains(tile) {
                    there.insert(*tile);
                }
            }
            disk.log.truncate(usize::try_from(journal.valid_bytes).unwrap());
            journal.missing = journal.tiles.keys().filter(|tile| !has.contains(*tile)).copied().collect();
            JournalLog::resumed(&journal, Duration::ZERO)
        }
        Err(_) => {
            let (log, bytes) = JournalLog::new(head, Duration::ZERO);
            disk.log = bytes;
            if dies && choose(8) == 0 {
                disk.log_synced = 0;
                disk.crash(choose);
                return None;
            }
            log
        }
    };
    Some((log, has, there))
}

/// What a run knows of its tiles and of the writes under way.
#[derive(Default)]
struct Run {
    /// Tiles in the order in which they were reported.
    said: Vec<Tile>,
    said_before_sync: usize,
    /// How many of them the pending appends contain, and how many are appended.
    covered: VecDeque<usize>,
    recorded: usize,
    under_way: VecDeque<JournalAction>,
    /// The pages of C that are being synced.
    syncing: Option<BTreeMap<(Tile, usize), u64>>,
}

impl Run {
    /// Begins what the log has asked for.
    fn begin(&mut self, actions: Vec<JournalAction>) {
        if actions.contains(&JournalAction::SyncData) {
            self.said_before_sync = self.said.len();
            let appends = self.under_way.iter().all(|a| matches!(a, JournalAction::Append(_)));
            assert!(self.syncing.is_none() && appends, "one interval at a time");
        }
        let is_record = |a: &&JournalAction| matches!(a, JournalAction::Append(b) if b.len() > RECORD_BYTES);
        let records = actions.iter().filter(is_record).count();
        self.covered.extend(core::iter::repeat_n(self.said.len(), records));
        self.under_way.extend(actions);
    }

    /// Completes the oldest write under way, or a sync of C, and returns the event that follows.
    fn complete(&mut self, disk: &mut Disk, there: &mut BTreeSet<Tile>) -> Option<JournalEvent> {
        if let Some(pages) = self.syncing.take() {
            disk.disk.extend(pages);
            return Some(JournalEvent::DataSynced);
        }
        match self.under_way.pop_front() {
            // Pages written during a sync may not reach the disk.
            Some(JournalAction::SyncData) => {
                self.syncing = Some(disk.memory.clone());
                None
            }
            Some(JournalAction::Append(bytes)) => {
                if bytes.len() > RECORD_BYTES {
                    self.recorded = self.covered.pop_front().unwrap();
                }
                disk.log.extend(bytes);
                None
            }
            Some(JournalAction::SyncLog) => {
                disk.log_synced = disk.log.len();
                there.extend(&self.said[..self.said_before_sync]);
                Some(JournalEvent::LogSynced)
            }
            None => Some(JournalEvent::Tick),
        }
    }

    /// Kills the process, or the machine, and checks what the journal still has.
    fn die(&self, disk: &mut Disk, there: &BTreeSet<Tile>, choose: &mut impl FnMut(usize) -> usize) {
        let is_killed = choose(2) == 0;
        if !is_killed {
            disk.crash(choose);
        }
        let left: BTreeSet<Tile> =
            read(&disk.log).map(|journal| journal.tiles.into_keys().collect()).unwrap_or_default();
        assert!(there.is_subset(&left), "an interval that had ended is lost");
        if is_killed {
            let recorded = &self.said[..self.recorded];
            assert!(recorded.iter().all(|tile| left.contains(tile)), "a recorded tile is lost");
            assert!(recorded.iter().all(|tile| is_right(disk, *tile)));
        }
    }
}

/// One run, until its tiles are done or it is killed. True if all tiles are in the journal.
fn live(
    disk: &mut Disk,
    head: &Head,
    tiles: &[Tile],
    choose: &mut impl FnMut(usize) -> usize,
    dies: bool,
) -> bool {
    let Some((mut log, has, mut there)) = opened(disk, head, choose, dies) else { return false };
    let (mut now, mut run) = (Duration::ZERO, Run::default());
    disk.log_synced = disk.log.len();
    let mut left: VecDeque<Tile> = tiles.iter().copied().filter(|tile| !has.contains(tile)).collect();
    while !(left.is_empty() && run.under_way.is_empty() && run.syncing.is_none() && log.is_quiet()) {
        let mut event = None;
        match choose(12) {
            // Half of a tile lands.
            0 | 1 if !left.is_empty() => {
                let tile = left[choose(left.len())];
                disk.memory.insert((tile, choose(PAGES)), 7 * choose(3) as u64);
            }
            2..=5 if !left.is_empty() => {
                let tile = left.remove(choose(left.len())).unwrap();
                disk.memory.extend((0..PAGES).map(|page| ((tile, page), right(tile, page))));
                run.said.push(tile);
                let digest = digest_of(&disk.pages(tile));
                event = Some(JournalEvent::Committed { region: tile.0, tile: tile.1, digest });
            }
            6 if !disk.memory.is_empty() => {
                // The system writes back some page.
                let (place, page) = disk.memory.iter().nth(choose(disk.memory.len())).unwrap();
                disk.disk.insert(*place, *page);
            }
            7 if dies && choose(6) == 0 => {
                run.die(disk, &there, choose);
                return false;
            }
            8 => event = Some(if left.is_empty() { JournalEvent::Stop } else { JournalEvent::Tick }),
            _ => event = run.complete(disk, &mut there),
        }
        now += Duration::from_millis(choose(1500) as u64);
        if let Some(event) = event {
            run.begin(log.handle(event, now));
        }
    }
    assert_eq!(read(&disk.log).unwrap().tiles.len(), tiles.len());
    true
}

/// Choices from a list of numbers; at its end, none left, then the middle.
fn chooser(choices: &[u16]) -> impl FnMut(usize) -> usize + '_ {
    let mut at = 0;
    move |of| {
        at += 1;
        let choice = choices[at % choices.len()].wrapping_add((at / choices.len()) as u16);
        usize::from(choice) % of.max(1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn tiles_in_the_journal_are_present_and_right_however_often_a_run_dies(
        choices in proptest::collection::vec(any::<u16>(), 101..400), lives in 0usize..6, strassen in any::<bool>(),
    ) {
        let head = head(if strassen { "strassen:1" } else { "reuse" });
        let regions = head.plan.regions.iter().enumerate();
        let tiles: Vec<Tile> = regions.flat_map(|(at, r)| (0..r.tiles()).map(move |t| (at, t))).collect();
        let mut disk = Disk::default();
        let mut choose = chooser(&choices);
        for _ in 0..lives {
            if live(&mut disk, &head, &tiles, &mut choose, true) {
                break;
            }
        }
        prop_assert!(live(&mut disk, &head, &tiles, &mut choose, false));
    }

    #[test]
    fn any_truncation_and_any_changed_byte_leave_the_records_before_it(
        counts in proptest::collection::vec(1u64..5, 1..6), cut in any::<prop::sample::Index>(), flip in 1u8..,
        at in any::<prop::sample::Index>(),
    ) {
        let (whole, ends) = written(&counts);
        let cut = cut.index(whole.len() + 1);
        let ended = |before: usize| ends.iter().rfind(|end| end.0 <= before).copied();
        let last = |before: usize| ended(before).unwrap_or_else(|| (head_bytes(), 0));
        match read(&whole[..cut]) {
            Ok(journal) => {
                prop_assert_eq!((journal.valid_bytes as usize, journal.tiles.len() as u64), last(cut));
                prop_assert!(journal.unsynced.len() <= journal.tiles.len());
            }
            Err(_) => prop_assert!(cut < head_bytes()),
        }
        let tile_count = counts.iter().sum::<u64>();
        let (mut damaged, at) = (whole.clone(), at.index(whole.len()));
        damaged[at] ^= flip;
        match read(&damaged) {
            Ok(journal) => {
                prop_assert!(at >= head_bytes());
                // A changed watermark states another number of synced records; the tiles are the same.
                prop_assert!(journal.tiles.len() as u64 >= last(at).1 && journal.tiles.len() as u64 <= tile_count);
                prop_assert!(journal.valid_bytes as usize >= last(at).0);
            }
            Err(_) => prop_assert!(at < head_bytes()),
        }
    }
}

fn head_bytes() -> usize {
    head("reuse").encode().len()
}

fn appended(actions: &[JournalAction], bytes: &mut Vec<u8>) {
    for action in actions {
        if let JournalAction::Append(more) = action {
            bytes.extend(more);
        }
    }
}

/// A journal with these numbers of tiles in its intervals; the valid lengths, and the number of tiles at
/// each.
fn written(counts: &[u64]) -> (Vec<u8>, Vec<(usize, u64)>) {
    let (mut log, mut bytes) = JournalLog::new(&head("reuse"), Duration::ZERO);
    let (mut ends, mut tile) = (Vec::new(), 0);
    for (at, count) in counts.iter().enumerate() {
        let now = Duration::from_secs(100 * (at as u64 + 1));
        for _ in 0..*count {
            let digest = Digest128([tile as u8; 16]);
            let before = now - Duration::from_secs(99);
            // The first tile is recorded at once, the others together a little later.
            let actions = log.handle(JournalEvent::Committed { region: 0, tile, digest }, before);
            appended(&actions, &mut bytes);
            ends.extend((!actions.is_empty()).then_some((bytes.len(), tile + 1)));
            tile += 1;
        }
        let actions = log.handle(JournalEvent::Tick, now);
        assert_eq!(actions.last(), Some(&JournalAction::SyncData));
        appended(&actions, &mut bytes);
        ends.push((bytes.len(), tile));
        let actions = log.handle(JournalEvent::DataSynced, now);
        assert_eq!(actions.last(), Some(&JournalAction::SyncLog));
        appended(&actions, &mut bytes);
        ends.push((bytes.len(), tile));
        assert!(log.handle(JournalEvent::LogSynced, now).is_empty());
        assert_eq!(log.durable(), tile);
    }
    (bytes, ends)
}

#[test]
fn reading_returns_the_written_journal() {
    for strategy in ["reuse", "strassen:1"] {
        let whole = head(strategy);
        assert_eq!(read(&whole.encode()).unwrap().head, whole);
        let mut reads_c = Head { old_c: Some(Digest128([9; 16])), beta: -0.5, ..whole.clone() };
        assert!(read(&reads_c.encode()).is_err(), "an old C that the plan does not read");
        reads_c.plan.problem.reads_c = true;
        assert_eq!(read(&reads_c.encode()).unwrap().head, reads_c);
    }
    let (bytes, _) = written(&[3, 2]);
    let tiles: Vec<u64> = read(&bytes).unwrap().tiles.keys().map(|(_, tile)| *tile).collect();
    assert_eq!(tiles, [0, 1, 2, 3, 4]);
    let mut other = bytes.clone();
    other[8] = 3;
    assert!(read(&other).unwrap_err().0.contains("version 3"));
    other[0] = b'b';
    assert!(read(&other).unwrap_err().0.contains("not a journal"));
}

#[test]
fn the_record_of_a_complete_c_is_read_whole_or_not_at_all_and_a_resumed_run_truncates_it() {
    let c = Digest128([7; 16]);
    for counts in [&[][..], &[3, 2]] {
        let (bytes, _) = written(counts);
        let noted = [&bytes[..], &complete(c)].concat();
        let journal = read(&noted).unwrap();
        assert_eq!((journal.c, journal.valid_bytes), (Some(c), bytes.len() as u64));
        assert_eq!(journal.tiles.len() as u64, counts.iter().sum::<u64>());
        for cut in bytes.len()..noted.len() {
            assert_eq!(read(&noted[..cut]).unwrap().c, None);
        }
        for at in 0..16 {
            let mut damaged = noted.clone();
            damaged[bytes.len() + at] ^= 4;
            assert_eq!(read(&damaged).unwrap().c, None, "byte {at}");
        }
    }
    // Not in the middle of an interval.
    let (bytes, _) = written(&[3]);
    let torn = [&bytes[..bytes.len() - 2 * RECORD_BYTES], &complete(c)].concat();
    assert_eq!(read(&torn).unwrap().c, None);
}

#[test]
fn a_journal_without_marks_is_that_of_a_program_before_and_all_of_it_is_synced() {
    let (bytes, ends) = written(&[2]);
    let (records, tiles) = ends[1];
    assert_eq!(read(&bytes[..records]).unwrap().unsynced.len() as u64, tiles);
    let head = head("reuse").encode();
    let mut older = head[..head.len() - 16].to_vec();
    older[8] = 1;
    older.extend(digest_of_bytes(&older).0);
    let mut digester = Digester::default();
    digester.update(&older);
    let record = |tile| TileRecord { region: 0, tile, digest: Digest128([3; 16]) };
    older.extend(append(&mut digester, &[record(4), record(1)], 0, 2));
    let journal = read(&older).unwrap();
    assert_eq!((journal.tiles.len(), journal.unsynced.len()), (2, 0));
    let log = JournalLog::resumed(&journal, Duration::ZERO);
    assert!(log.is_quiet() && log.durable() == 2);
}

fn digest_of_bytes(bytes: &[u8]) -> Digest128 {
    let mut digester = Digester::default();
    digester.update(bytes);
    digester.digest()
}

#[test]
fn tiles_are_recorded_at_once_and_intervals_are_twenty_syncs_long_and_two_seconds_at_least() {
    let s = Duration::from_secs;
    let (mut log, _) = JournalLog::new(&head("reuse"), s(10));
    let committed = |tile| JournalEvent::Committed { region: 0, tile, digest: Digest128([0; 16]) };
    let bytes = |actions: &[JournalAction]| match actions.first() {
        Some(JournalAction::Append(bytes)) => bytes.len(),
        _ => 0,
    };
    assert_eq!(log.handle(JournalEvent::Tick, s(30)), []);
    assert_eq!(log.wakes(), None);
    // A process that is killed now leaves this record.
    let actions = log.handle(committed(0), s(11));
    assert_eq!((bytes(&actions), actions.len()), (2 * RECORD_BYTES, 1));
    // The next tiles wait for each other, but not for long.
    assert_eq!(log.handle(committed(1), s(11) + APPEND_EVERY / 2), []);
    assert_eq!(log.wakes(), Some(s(11) + APPEND_EVERY));
    assert_eq!(bytes(&log.handle(committed(2), s(11) + APPEND_EVERY)), 3 * RECORD_BYTES);
    assert_eq!(log.wakes(), Some(s(12)));
    assert_eq!(log.handle(JournalEvent::Tick, s(12)), [JournalAction::SyncData]);
    // Data written during a sync may not be on disk, so the watermark excludes them.
    assert_eq!(log.handle(committed(3), s(13)), []);
    let actions = log.handle(JournalEvent::DataSynced, s(14));
    assert_eq!((bytes(&actions), actions.last()), (RECORD_BYTES, Some(&JournalAction::SyncLog)));
    assert_eq!(bytes(&log.handle(JournalEvent::LogSynced, s(15))), 2 * RECORD_BYTES);
    assert_eq!((log.durable(), log.wakes()), (3, Some(s(15 + 3 * 20))));
    assert_eq!(log.handle(JournalEvent::Tick, s(74)), []);
    assert_eq!(log.handle(JournalEvent::Stop, s(74)), [JournalAction::SyncData]);
    log.handle(JournalEvent::DataSynced, s(74));
    log.handle(JournalEvent::LogSynced, s(74));
    assert!(log.is_quiet() && log.durable() == 4);
}
