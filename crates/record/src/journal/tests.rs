//! The journal writer with real files.

use super::*;
use bramble_matrix::{DType, Generator, Shape, Span, Unfinished};
use bramble_plan::{LinkRate, Machine, OperandSource, PlanOptions, Problem, TileSize, decide};
use std::fs;

fn plan() -> Plan {
    let p = Problem {
        m: 30,
        n: 20,
        k: 8,
        dtype: DType::F64,
        reads_c: false,
        a_source: OperandSource::Generated,
        b_source: OperandSource::Generated,
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
    let cut = TileSize { tile: Some(10), depth: Some(8) };
    decide(&p, cut, &machine, std::slice::from_ref(&machine), &PlanOptions::AUTO).unwrap().plan
}

fn subject() -> JournalSubject {
    let random = |seed, rows, cols| {
        Matrix::generated("r", Generator::random(seed), Shape::new(rows, cols), DType::F64).unwrap()
    };
    let (a, b) = (random(1, 30, 8), random(2, 8, 20));
    JournalSubject {
        a,
        b,
        old_c: None,
        alpha: 2.0,
        beta: 0.0,
        kernel: "simd".to_owned(),
        plan: plan(),
        threads: 1,
    }
}

/// Tile (i, j).
fn tile(i: u64, j: u64) -> Rect {
    Rect::new(Span::new(10 * i, 10 * i + 10), Span::new(10 * j, 10 * j + 10))
}

/// Fills a tile and reports it complete.
fn complete(output: &Output, journal_writer: &JournalWriter, i: u64, j: u64) -> Digest128 {
    let mut lent = output.lease(tile(i, j));
    (0..lent.lines()).for_each(|line| lent.line_mut(line).fill((10 * i + j + 1) as u8));
    let digest = lent.digest();
    drop(lent);
    journal_writer.committed(tile(i, j));
    digest
}

fn ended(journal_writer: JournalWriter, how: JournalEnding) -> Result<JournalFile, RecordError> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(journal_writer.end(how))
}

fn found(path: &Path) -> Box<Journal> {
    match find_journal(path).unwrap() {
        FoundJournal::Journal(journal) => journal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn complete_tiles_are_in_the_journal_and_another_run_resumes_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let c = folder.path().join("c.npy");
    let path = journal_of(&c);
    let journaling = |before| JournalOptions {
        path: path.clone(),
        before,
        every: Duration::ZERO,
        on_step: DiskStepHook::default(),
    };
    let shape = Shape::new(30, 20);
    let output = Arc::new(Output::create(&c, shape, DType::F64).unwrap());
    let journal_writer = JournalWriter::start(journaling(None), subject(), output.clone()).unwrap();
    while !journal_writer.is_writing() {
        std::thread::yield_now();
    }
    let first = [complete(&output, &journal_writer, 0, 1), complete(&output, &journal_writer, 2, 0)];
    drop(ended(journal_writer, JournalEnding::Last).unwrap());
    drop(Arc::into_inner(output).unwrap());
    let before = found(&path);
    assert_eq!(
        before.tiles.iter().map(|(tile, digest)| (tile.1, *digest)).collect::<Vec<_>>(),
        [(1, first[0]), (4, first[1])]
    );
    assert_eq!((before.head.alpha, before.head.kernel.as_str()), (2.0, "simd"));

    // A torn write at the end does not matter.
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([1; 40]);
    fs::write(&path, bytes).unwrap();
    let output = Unfinished::lock(&c).unwrap().resume(shape, DType::F64).unwrap();
    assert_eq!(output.lease(tile(2, 0)).digest(), first[1]);
    let output = Arc::new(output);
    let journal_writer = JournalWriter::start(journaling(Some(before)), subject(), output.clone()).unwrap();
    let second = complete(&output, &journal_writer, 1, 1);
    let file = ended(journal_writer, JournalEnding::Last).unwrap();
    let after = found(&path);
    assert_eq!((after.tiles.len(), after.tiles[&(0, 3)]), (3, second));
    file.remove();
    assert!(!path.exists());
}

#[test]
fn a_journal_without_tiles_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let c = folder.path().join("c.npy");
    for (every, how) in [
        (Duration::from_secs(100), JournalEnding::Last),
        (Duration::ZERO, JournalEnding::Last),
        (Duration::ZERO, JournalEnding::Now),
    ] {
        let output = Arc::new(Output::create(&c, Shape::new(30, 20), DType::F64).unwrap());
        let journaling =
            JournalOptions { path: journal_of(&c), before: None, every, on_step: DiskStepHook::default() };
        let journal_writer = JournalWriter::start(journaling, subject(), output.clone()).unwrap();
        assert!(journal_of(&c).exists());
        drop(ended(journal_writer, how).unwrap());
        drop(output);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_full_disk_is_reported_with_the_file_and_the_next_step() {
    let file = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut full = JournalFile::of(file, Path::new("c.npy.journal"));
    let error = full.append(&[1; 64]).unwrap_err().to_string();
    assert!(
        error.contains("c.npy.journal") && error.contains("No space left") && error.contains("make room"),
        "{error}"
    );
}

#[test]
fn files_that_are_no_journal_are_recognized() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.npy.journal");
    assert!(matches!(find_journal(&path).unwrap(), FoundJournal::Missing));
    fs::write(&path, "").unwrap();
    assert!(matches!(find_journal(&path).unwrap(), FoundJournal::Empty));
    let none = Digest128::default();
    fs::write(&path, head(&subject(), none, none, None).encode()).unwrap();
    assert!(matches!(find_journal(&path).unwrap(), FoundJournal::NoTiles));
    fs::write(&path, "a letter, not a journal").unwrap();
    assert!(
        matches!(find_journal(&path).unwrap(), FoundJournal::Unreadable(why) if why.contains("not a journal"))
    );
}
