//! The output: complete or absent, and leased to one holder at a time.

use super::*;
use std::fs;
use std::path::PathBuf;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn rect(rows: (u64, u64), cols: (u64, u64)) -> Rect {
    Rect::new(Span::new(rows.0, rows.1), Span::new(cols.0, cols.1))
}

/// Writes i * 1000 + j into a rectangle.
fn number(mut lent: TileLease) {
    let Rect { rows, cols } = lent.rect();
    let mut view = lent.view_mut::<i32>();
    for i in 0..view.rows() {
        for j in 0..view.cols() {
            let value = (rows.start + i as u64) * 1000 + cols.start + j as u64;
            *view.at_mut(i, j) = i32::try_from(value).unwrap();
        }
    }
}

fn error(path: &Path) -> String {
    Output::create(path, Shape::new(2, 2), DType::F64).unwrap_err().to_string()
}

#[test]
fn commit_replaces_and_drop_leaves_nothing() {
    let folder = folder();
    let path = folder.path().join("c.npy");
    fs::write(&path, "old").unwrap();
    let make = || Output::create(&path, Shape::new(3, 5), DType::I32).unwrap();
    drop(make());
    drop(make().seal().unwrap());
    assert_eq!((names(folder.path()), fs::read(&path).unwrap()), (vec!["c.npy".to_owned()], b"old".to_vec()));
    let output = make();
    assert_eq!(names(folder.path()), ["c.npy", "c.npy.part"]);
    number(output.lease(output.shape().rect()));
    let sealed = output.seal().unwrap();
    let matrix = sealed.matrix().unwrap();
    let mut bytes = npy::write_header(Shape::new(3, 5), DType::I32);
    bytes.extend(sealed.bytes());
    assert_eq!(sealed.bytes().len(), 60);
    sealed.commit().unwrap();
    assert_eq!((names(folder.path()), fs::read(&path).unwrap()), (vec!["c.npy".to_owned()], bytes));
    let read = Matrix::open(path.to_str().unwrap()).unwrap();
    let lines = read.lines(rect((2, 3), (1, 3))).unwrap();
    assert_eq!(lines.view::<i32>().at(0, 1), 2002);
    assert_eq!(matrix.lines(rect((2, 3), (1, 3))).unwrap().line(0), lines.line(0), "readable after commit");
}

#[test]
fn threads_write_interleaved_tiles() {
    let folder = folder();
    let path = folder.path().join("c.npy");
    let shape = Shape::new(97, 203);
    let output = Output::create(&path, shape, DType::I32).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let output = &output;
            scope.spawn(move || {
                for (i, j) in (0..10).flat_map(|i| (0..21).map(move |j| (i, j))) {
                    if (i + j) % 2 == thread {
                        let (i, j) = (i * 10, j * 10);
                        number(output.lease(rect((i, (i + 10).min(97)), (j, (j + 10).min(203)))));
                    }
                }
                output.start_writeback(Span::new(0, 97));
            });
        }
    });
    assert_eq!(output.lent(), 0);
    let sealed = output.seal().unwrap();
    let matrix = sealed.matrix().unwrap();
    let lines = matrix.lines(shape.rect()).unwrap();
    let view = lines.view::<i32>();
    assert!((0..97).all(|i| (0..203).all(|j| view.at(i, j) == i32::try_from(i * 1000 + j).unwrap())));
    sealed.commit().unwrap();
}

#[test]
fn nothing_is_lost_where_threads_write_while_pages_go_to_the_disk() {
    let folder = folder();
    // Rows of 4,800 bytes: neighbouring rows share pages, and all rows together are enough for a request to write back.
    let shape = Shape::new(600, 1200);
    let output = Output::create(&folder.path().join("c.npy"), shape, DType::I32).unwrap();
    let number = |i: u64, j: usize| i32::try_from(i * 10_000 + j as u64).unwrap();
    let writers_left = std::sync::atomic::AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for parity in 0..2 {
            let (output, writers_left) = (&output, &writers_left);
            scope.spawn(move || {
                for i in (parity..600).step_by(2) {
                    let mut row = output.lease(rect((i, i + 1), (0, 1200)));
                    let mut view = row.view_mut::<i32>();
                    (0..1200).for_each(|j| *view.at_mut(0, j) = number(i, j));
                }
                writers_left.fetch_sub(1, std::sync::atomic::Ordering::Release);
            });
        }
        while writers_left.load(std::sync::atomic::Ordering::Acquire) > 0 {
            output.start_writeback(Span::new(0, 600));
            output.sync().unwrap();
        }
    });
    let sealed = output.seal().unwrap();
    let lines = sealed.matrix().unwrap().lines(shape.rect()).unwrap();
    let view = lines.view::<i32>();
    assert!((0..600).all(|i| (0..1200).all(|j| view.at(i, j) == number(i as u64, j))));
}

#[test]
fn lines_of_a_lent_rectangle_are_its_rows() {
    let output = Output::anonymous(Shape::new(4, 6), DType::F32).unwrap();
    let mut lent = output.lease(rect((1, 3), (2, 5)));
    assert_eq!((lent.lines(), lent.line_bytes(), lent.dtype()), (2, 12, DType::F32));
    lent.line_mut(1).copy_from_slice(&[7; 12]);
    assert_eq!((lent.line(0), lent.line(1)), (&[0; 12][..], &[7; 12][..]));
    drop(lent);
    let sealed = output.seal().unwrap();
    let at = (2 * 6 + 2) * 4;
    assert!(sealed.bytes().iter().enumerate().all(|(i, &b)| (b == 7) == (at..at + 12).contains(&i)));
    sealed.commit().unwrap();
}

#[test]
#[should_panic(expected = "overlaps [0..2, 0..2], which is still lent")]
fn overlapping_loans_are_a_bug() {
    let output = Output::anonymous(Shape::new(4, 4), DType::F32).unwrap();
    let _one = output.lease(rect((0, 2), (0, 2)));
    let _free = output.lease(rect((0, 2), (2, 4)));
    output.lease(rect((1, 3), (1, 3)));
}

#[test]
#[should_panic(expected = "outside the output")]
fn loans_outside_are_a_bug() {
    Output::anonymous(Shape::new(4, 4), DType::F32).unwrap().lease(rect((0, 5), (0, 1)));
}

#[test]
fn what_is_lent_cannot_be_sealed_and_outlives_the_output() {
    let folder = folder();
    let path = folder.path().join("c.npy");
    let output = Output::create(&path, Shape::new(4, 4), DType::F64).unwrap();
    let mut lent = output.lease(rect((0, 2), (0, 4)));
    let message = output.seal().unwrap_err().to_string();
    assert!(message.contains("1 rectangles are still being written"), "{message}");
    assert!(names(folder.path()).is_empty());
    lent.line_mut(1).fill(1);
}

#[test]
fn matrices_without_elements_are_written() {
    let folder = folder();
    for (rows, cols) in [(0, 0), (0, 4), (4, 0)] {
        let (path, shape) = (folder.path().join("c.npy"), Shape::new(rows, cols));
        for output in
            [Output::create(&path, shape, DType::F64).unwrap(), Output::anonymous(shape, DType::F64).unwrap()]
        {
            let mut lent = output.lease(shape.rect());
            let also = output.lease(shape.rect());
            let view = lent.view_mut::<f64>();
            assert_eq!((view.rows() as u64, view.cols() as u64), (rows, cols));
            drop((lent, also));
            let sealed = output.seal().unwrap();
            assert!(sealed.bytes().is_empty() && sealed.matrix().unwrap().shape() == shape);
            sealed.commit().unwrap();
        }
        assert_eq!(Matrix::open(path.to_str().unwrap()).unwrap().shape(), shape);
    }
}

#[test]
fn places_that_cannot_be_written_are_refused_and_left_alone() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    assert!(error(&at("no/c.npy")).contains("there is no folder"), "{}", error(&at("no/c.npy")));
    assert!(error(folder.path()).contains("is a folder"));
    assert!(error(&at("c.npy/")).contains("name of a folder"));
    assert!(error(&at("c.mtx")).contains("written as .npy"));
    assert!(error(&at("c.Safetensors")).contains("written as .npy"));
    fs::write(at("plain"), "").unwrap();
    assert!(error(&at("plain/c.npy")).contains("not a folder"));
    fs::create_dir(at("d.npy.part")).unwrap();
    assert!(error(&at("d.npy")).contains("d.npy.part"));
    fs::remove_dir(at("d.npy.part")).unwrap();
    assert!(error(Path::new("/dev/null")).contains("not a regular file"));
    let huge = Output::create(&at("h.npy"), Shape::new(1 << 29, 1 << 30), DType::F64);
    let message = huge.unwrap_err().to_string();
    assert!(message.contains("h.npy"), "{message}");
    let more = Output::create(&at("h.npy"), Shape::new(1 << 32, 1 << 30), DType::F64);
    assert!(more.unwrap_err().to_string().contains("2^63"));
    assert_eq!(names(folder.path()), ["plain"], "no .part is left by an error");
}

#[test]
fn a_full_disk_is_an_error_at_the_start() {
    let folder = folder();
    let stat = rustix::fs::statvfs(folder.path()).unwrap();
    let rows = (stat.f_bavail * stat.f_frsize) / 8 * 2;
    let message = Output::create(&folder.path().join("c.npy"), Shape::new(rows, 1), DType::F64).unwrap_err();
    assert!(message.to_string().contains("but the disk has"), "{message}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_result_that_does_not_fit_takes_no_space_from_other_programs() {
    let (folder, other) = (folder(), folder());
    let stat = rustix::fs::statvfs(folder.path()).unwrap();
    let rows = (stat.f_bavail * stat.f_frsize) / 8 * 2;
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for i in 0..2000 {
                fs::write(other.path().join(format!("{i}")), [1; 5000]).unwrap();
            }
        });
        while !writing.is_finished() {
            Output::create(&folder.path().join("c.npy"), Shape::new(rows, 1), DType::F64).unwrap_err();
        }
    });
}

#[test]
fn a_second_run_of_the_same_name_is_refused() {
    let folder = folder();
    let path = folder.path().join("c.npy");
    let first = Output::create(&path, Shape::new(2, 2), DType::F64).unwrap();
    assert!(error(&path).contains("c.npy.part: another run is writing it"), "{}", error(&path));
    assert_eq!(names(folder.path()), ["c.npy.part"], "the refused run leaves the other's file");
    first.seal().unwrap().commit().unwrap();
    drop(Output::create(&path, Shape::new(2, 2), DType::F64).unwrap());
    assert_eq!(names(folder.path()), ["c.npy"]);
}

#[test]
fn what_a_killed_run_left_is_overwritten() {
    let folder = folder();
    let path = folder.path().join("c.npy");
    fs::write(folder.path().join("c.npy.part"), vec![0xFF; 10_000]).unwrap();
    Output::create(&path, Shape::new(2, 2), DType::F64).unwrap().seal().unwrap().commit().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 128 + 32);
    assert!(fs::read(&path).unwrap()[128..].iter().all(|&b| b == 0));
}

#[test]
fn links_are_followed_for_the_result_but_not_for_the_part() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let link = |to: PathBuf, from: PathBuf| std::os::unix::fs::symlink(to, from).unwrap();
    fs::write(at("real.npy"), "old").unwrap();
    link(at("real.npy"), at("link.npy"));
    let output = Output::create(&at("link.npy"), Shape::new(1, 1), DType::F64).unwrap();
    output.seal().unwrap().commit().unwrap();
    assert!(fs::symlink_metadata(at("link.npy")).unwrap().is_symlink());
    assert_eq!(fs::metadata(at("real.npy")).unwrap().len(), 136);
    link(at("real.npy"), at("x.npy.part"));
    assert!(error(&at("x.npy")).contains("cannot make the file"));
    link(at("nowhere"), at("dangling.npy"));
    assert!(error(&at("dangling.npy")).contains("leads nowhere"));
}

#[test]
fn thousands_of_tiles_can_be_lent_at_once() {
    let output = Output::anonymous(Shape::new(1000, 1000), DType::F32).unwrap();
    let tiles = (0..100).flat_map(|i| (0..100).map(move |j| (i * 10, j * 10)));
    let lent: Vec<TileLease> = tiles.map(|(i, j)| output.lease(rect((i, i + 10), (j, j + 10)))).collect();
    assert_eq!(output.lent(), 10_000);
    drop(lent);
    output.lease(Shape::new(1000, 1000).rect());
}

#[test]
fn what_is_kept_is_there_for_another_run_and_only_for_the_same_shape_and_type() {
    let folder = folder();
    let path = folder.path().join("c.npy");
    let shape = Shape::new(40, 3);
    let locked = Unfinished::lock(&path).unwrap();
    assert!(!locked.has_begun().unwrap());
    drop(locked);
    assert!(names(folder.path()).is_empty(), "an empty file stays");
    let output = Output::create(&path, shape, DType::I32).unwrap();
    number(output.lease(rect((5, 10), (0, 3))));
    let digest = output.lease(rect((5, 10), (0, 3))).digest();
    output.sync().unwrap();
    output.keep(true);
    assert!(Unfinished::lock(&path).unwrap_err().to_string().contains("another run"));
    drop(output);
    for (shape, dtype) in
        [(shape, DType::F32), (Shape::new(3, 40), DType::I32), (Shape::new(41, 3), DType::I32)]
    {
        let locked = Unfinished::lock(&path).unwrap();
        assert!(locked.has_begun().unwrap());
        let error = locked.resume(shape, dtype).unwrap_err().to_string();
        assert!(error.contains("--restart") && error.contains("c.npy.part"), "{error}");
    }
    let output = Unfinished::lock(&path).unwrap().resume(shape, DType::I32).unwrap();
    assert_eq!(output.lease(rect((5, 10), (0, 3))).digest(), digest);
    number(output.lease(rect((0, 5), (0, 3))));
    number(output.lease(rect((10, 40), (0, 3))));
    output.seal().unwrap().commit().unwrap();
    let read = Matrix::open(path.to_str().unwrap()).unwrap();
    assert_eq!(read.lines(shape.rect()).unwrap().view::<i32>().at(7, 2), 7002);
    assert_eq!(names(folder.path()), ["c.npy"]);
}

#[test]
fn what_is_begun_anew_or_discarded_is_gone() {
    let folder = folder();
    let path = folder.path().join("c.npy");
    let shape = Shape::new(4, 3);
    let make = || {
        let output = Output::create(&path, shape, DType::I32).unwrap();
        number(output.lease(shape.rect()));
        output.keep(true);
        output
    };
    drop(make().seal().unwrap());
    assert_eq!(names(folder.path()), ["c.npy.part"]);
    let again = Unfinished::lock(&path).unwrap().restart(shape, DType::I32).unwrap();
    assert_eq!(again.lease(shape.rect()).line(2), [0; 12]);
    drop(again);
    assert!(names(folder.path()).is_empty());
    make().seal().unwrap().discard();
    assert!(names(folder.path()).is_empty());
}

#[test]
fn what_is_written_can_be_read_and_then_written_again() {
    let output = Output::anonymous(Shape::new(3, 5), DType::I32).unwrap();
    number(output.lease(output.shape().rect()));
    let one = output.lease(rect((0, 1), (0, 1)));
    assert!(output.matrix().unwrap_err().to_string().contains("while it is written"));
    drop(one);
    let matrix = output.matrix().unwrap();
    assert_eq!((matrix.shape(), output.lent()), (output.shape(), 1));
    assert_eq!(
        matrix.part(rect((1, 3), (2, 4))).lines(rect((1, 2), (0, 2))).unwrap().view::<i32>().at(0, 1),
        2003
    );
    drop(matrix);
    number(output.lease(rect((1, 3), (0, 5))));
    let sealed = output.seal().unwrap();
    assert_eq!(sealed.matrix().unwrap().lines(rect((2, 3), (1, 3))).unwrap().view::<i32>().at(0, 1), 2002);
}

#[test]
#[should_panic(expected = "still lent")]
fn who_reads_all_keeps_writers_out() {
    let output = Output::anonymous(Shape::new(3, 5), DType::I32).unwrap();
    let _all = output.matrix().unwrap();
    output.lease(rect((2, 3), (4, 5)));
}
