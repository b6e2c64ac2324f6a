//! Matrix Market: the supported formats, the messages for all others, and hostile texts.

use super::*;
use proptest::prelude::*;

fn parsed(text: &str) -> Result<Matrix, String> {
    parse("a.mtx", text.as_bytes(), Some(1 << 30)).map_err(|e| e.to_string())
}

/// The elements row by row.
fn rows<T: Element>(matrix: &Matrix) -> Vec<T> {
    let lines = matrix.lines(matrix.shape().rect()).unwrap();
    let view = lines.view::<T>();
    (0..view.rows()).flat_map(|i| (0..view.cols()).map(move |j| (i, j))).map(|(i, j)| view.at(i, j)).collect()
}

#[test]
fn arrays_are_column_by_column() {
    let text =
        "%%MatrixMarket matrix array real general\n% comment\n\n2 3\n1\n2\n\n3e0\n% in between\n-4.5\n5\n6";
    let matrix = parsed(text).unwrap();
    assert_eq!((matrix.dtype(), matrix.layout()), (DType::F64, Layout::ColMajor));
    assert_eq!(rows::<f64>(&matrix), [1.0, 3.0, 5.0, 2.0, -4.5, 6.0]);
    let windows = parsed(&text.replace('\n', "\r\n")).unwrap();
    assert_eq!(rows::<f64>(&windows), rows::<f64>(&matrix));
}

#[test]
fn numbers_of_fortran_and_unsigned_integers_are_read() {
    let text = "%%MatrixMarket matrix array real general\n1 5\n5.0D+00\n-1d-3\n.5D1\n1.e2\n2.d0\n";
    assert_eq!(rows::<f64>(&parsed(text).unwrap()), [5.0, -1e-3, 5.0, 100.0, 2.0]);
    for bad in ["D+00", "1D", "nand1", "1D5D5", "1f5"] {
        let text = format!("%%MatrixMarket matrix array real general\n1 1\n{bad}\n");
        assert!(parsed(&text).unwrap_err().contains("is not a number"), "{bad}");
    }
    let unsigned =
        |n: &str| parsed(&format!("%%MatrixMarket matrix array unsigned-integer general\n1 1\n{n}\n"));
    assert_eq!(rows::<i64>(&unsigned("9223372036854775807").unwrap()), [i64::MAX]);
    let large = unsigned("9223372036854775808").unwrap_err();
    assert!(large.contains("a.mtx:3: ") && large.contains("-2^63 to 2^63-1"), "{large}");
}

#[test]
fn what_cannot_be_is_not_offered() {
    let skew = parsed("%%MatrixMarket matrix coordinate pattern skew-symmetric\n2 2 1\n2 1\n").unwrap_err();
    assert!(skew.contains("a pattern has no signs"), "{skew}");
    let long = parsed("%%MatrixMarket matrix array real general\n0 1000000000000\n").unwrap_err();
    assert!(long.contains("a side is 4294967296 at most"), "{long}");
}

#[test]
fn symmetric_arrays_give_the_lower_triangle() {
    let head = "%%MATRIXMARKET MATRIX ARRAY INTEGER";
    let matrix = parsed(&format!("{head} symmetric\n3 3\n1\n2\n3\n4\n5\n6\n")).unwrap();
    assert_eq!(rows::<i64>(&matrix), [1, 2, 3, 2, 4, 5, 3, 5, 6]);
    let matrix = parsed(&format!("{head} Skew-Symmetric\n3 3\n1\n2\n3\n")).unwrap();
    assert_eq!(rows::<i64>(&matrix), [0, -1, -2, 1, 0, -3, 2, 3, 0]);
}

#[test]
fn coordinates_are_summed_and_mirrored() {
    let matrix =
        parsed("%%MatrixMarket matrix coordinate double general\n2 3 4\n1 1 1\n2 3 0.5\n2 3 0.25\n1 2 -1\n");
    assert_eq!(rows::<f64>(&matrix.unwrap()), [1.0, -1.0, 0.0, 0.0, 0.0, 0.75]);
    let matrix = parsed("%%MatrixMarket matrix coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n").unwrap();
    assert_eq!(rows::<f64>(&matrix), [1.0, 1.0, 1.0, 0.0]);
    let matrix = parsed("%%MatrixMarket matrix coordinate integer skew-symmetric\n2 2 1\n2 1 7\n").unwrap();
    assert_eq!((rows::<i64>(&matrix), matrix.layout()), (vec![0, -7, 7, 0], Layout::RowMajor));
    let empty = parsed("%%MatrixMarket matrix coordinate real general\n2 2 0\n").unwrap();
    assert_eq!(rows::<f64>(&empty), [0.0; 4]);
}

#[test]
fn errors_name_the_line() {
    let general = "%%MatrixMarket matrix coordinate real general\n";
    for (text, words) in [
        ("", "a.mtx:0: is not '%%MatrixMarket"),
        ("hello\n", "a.mtx:1: is not '%%MatrixMarket"),
        ("%%MatrixMarket matrix array complex general\n1 1\n1 0\n", "a.mtx:1: complex matrices"),
        ("%%MatrixMarket matrix coordinate real hermitian\n1 1 0\n", "a.mtx:1: hermitian"),
        ("%%MatrixMarket matrix array pattern general\n1 1\n", "a.mtx:1: 'pattern' is not"),
        ("%%MatrixMarket matrix array real symmetric\n1 2\n1\n", "a.mtx:2: a 1x2 matrix is not square"),
        ("%%MatrixMarket matrix array real general\n2 1\n1\nx\n", "a.mtx:4: 'x' is not a number"),
        ("%%MatrixMarket matrix array real general\n1 1\n1\n2\n", "a.mtx:4: more than the 1 entries"),
        ("%%MatrixMarket matrix array real general\n2 1\n1 1\n1\n", "a.mtx:3: has more than one number"),
        (
            "%%MatrixMarket matrix array real general\n2 1\n%%\n1\n",
            "a.mtx:4: the file ends before entry (2, 1)",
        ),
        (
            "%%MatrixMarket matrix array real general\n999999 999999\n1\n",
            "a.mtx:2: 999998000001 entries are announced",
        ),
        ("%%MatrixMarket matrix array integer general\n1 1\n1.5\n", "a.mtx:3: '1.5' is not an integer"),
        ("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 1\n", "a.mtx:3: the diagonal"),
        (&format!("{general}2 2 1\n3 1 1.0\n"), "a.mtx:3: entry (3, 1) is outside 2x2 (counted from 1)"),
        (&format!("{general}2 2 1\n0 1 1.0\n"), "a.mtx:3: entry (0, 1) is outside"),
        (&format!("{general}2 2 1\n1 1   \n"), "a.mtx:3: a number is missing"),
        (&format!("{general}2 2 2\n1 1 1.000000\n"), "a.mtx:3: the file ends after 1 of 2"),
        (&format!("{general}2 2 -1\n"), "a.mtx:2: '-1' is not a number of entries"),
        (&format!("{general}2 2\n"), "a.mtx:2: a number of entries is missing"),
        (general, "a.mtx:1: the line with the sizes is missing"),
        (&format!("{general}99999999999 99999999999 1\n1 1 1\n"), "2^63"),
    ] {
        let message = parsed(text).unwrap_err();
        assert!(message.contains(words), "{text:?} gave: {message}");
    }
}

#[test]
fn a_dense_size_beyond_the_free_memory_is_refused_with_the_numbers() {
    let text = b"%%MatrixMarket matrix coordinate real general\n1000 1000 1\n1 1 1.0\n";
    let message = parse("a.mtx", text, Some(7_999_999)).unwrap_err().to_string();
    assert!(message.contains("needs 8000000 bytes") && message.contains("7999999 available"), "{message}");
    assert!(parse("a.mtx", text, Some(8_000_000)).is_ok());
    assert!(parse("a.mtx", text, None).is_ok());
}

#[test]
fn this_machine_says_how_much_memory_it_has() {
    if cfg!(target_os = "linux") {
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}

/// One of each kind of file, to be damaged.
const WHOLE: [&str; 4] = [
    "%%MatrixMarket matrix array real general\n% c\n2 2\n1\n2.5\n-3e2\n4\n",
    "%%MatrixMarket matrix array integer symmetric\n2 2\n1\n2\n3\n",
    "%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 1.5\n3 1 -1\n",
    "%%MatrixMarket matrix coordinate pattern general\r\n3 2 2\r\n2 1\r\n3 2\r\n",
];

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse("a", &bytes, Some(1 << 20));
    }

    #[test]
    fn no_likely_text_makes_the_parser_panic(which in 0usize..4, body in "[0-9 .\n%e-]{0,80}") {
        let head = WHOLE[which].lines().next().unwrap();
        let _ = parse("a", format!("{head}\n{body}").as_bytes(), Some(1 << 20));
    }

    #[test]
    fn damaged_files_are_read_or_refused(which in 0usize..4, at in 0usize..90, value: u8, cut in 0usize..120) {
        let mut bytes = WHOLE[which].as_bytes().to_vec();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
        bytes.truncate(cut);
        let _ = parse("a", &bytes, Some(1 << 20));
    }

    #[test]
    fn written_arrays_are_read_back((rows_, cols) in (1usize..8, 1usize..8), values in prop::collection::vec(any::<f64>(), 64)) {
        let values = &values[..rows_ * cols];
        let body: String = values.iter().map(|v| format!("{v:e}\n")).collect();
        let text = format!("%%MatrixMarket matrix array real general\n{rows_} {cols}\n{body}");
        let lines = parsed(&text).unwrap();
        let lines = lines.lines(lines.shape().rect()).unwrap();
        let read: Vec<u64> = (0..cols).flat_map(|j| lines.line(j).as_chunks().0.to_vec()).map(u64::from_le_bytes).collect();
        let want: Vec<u64> = values.iter().map(|v| v.to_bits()).collect();
        prop_assert_eq!(read, want);
    }
}
