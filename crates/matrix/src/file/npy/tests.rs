//! `.npy`: all formats, types and orders round trip; everything else is refused in words.

use super::*;
use proptest::prelude::*;

/// A file of any format version with that header text.
fn file(version: u8, text: &str, data: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([version, 0]);
    match version {
        1 => out.extend(u16::try_from(text.len()).unwrap().to_le_bytes()),
        _ => out.extend(u32::try_from(text.len()).unwrap().to_le_bytes()),
    }
    out.extend(text.as_bytes());
    out.extend(data);
    out
}

fn text(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
}

fn opened(bytes: &[u8]) -> Result<Matrix, MatrixError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    std::fs::write(&path, bytes).unwrap();
    Matrix::open(path.to_str().unwrap())
}

fn block(matrix: &Matrix) -> Vec<u8> {
    let mut out = vec![0; matrix.shape().bytes(matrix.dtype()).unwrap() as usize];
    matrix.read_block(matrix.shape().rect(), &mut out).unwrap();
    out
}

#[test]
fn headers_are_those_that_numpy_writes() {
    let header = write_header(Shape::new(3, 4), DType::F64);
    let want = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }";
    assert_eq!(&header[..10], b"\x93NUMPY\x01\x00v\x00");
    assert_eq!(std::str::from_utf8(&header[10..]).unwrap(), format!("{want:<117}\n"));
    for (rows, cols) in [(0, 0), (1, 1), (u64::MAX, u64::MAX), (12_345, 7)] {
        for dtype in DType::ALL {
            let header = write_header(Shape::new(rows, cols), dtype);
            assert!(header.len().is_multiple_of(64));
            let parsed = parse(&header).unwrap();
            assert_eq!((parsed.shape, parsed.start), (Shape::new(rows, cols), header.len()));
            assert_eq!((parsed.element.dtype(), parsed.layout), (dtype, Layout::RowMajor));
        }
    }
}

#[test]
fn every_version_and_order_is_read() {
    let data: Vec<u8> = (0..6).flat_map(|i| f64::from(i).to_le_bytes()).collect();
    for version in 1..=3 {
        for (fortran, layout) in [("False", Layout::RowMajor), ("True", Layout::ColMajor)] {
            let matrix = opened(&file(version, &text("'<f8'", fortran, "(2, 3)"), &data)).unwrap();
            assert_eq!((matrix.shape(), matrix.layout()), (Shape::new(2, 3), layout));
            assert_eq!(block(&matrix), data);
        }
    }
    let version = opened(&file(4, &text("'<f8'", "False", "(2, 3)"), &data)).unwrap_err().to_string();
    assert!(version.contains("format 4.0"), "{version}");
    let mut later = file(1, &text("'<f8'", "False", "(2, 3)"), &data);
    later[7] = 1;
    let version = opened(&later).unwrap_err().to_string();
    assert!(version.contains("format 1.1"), "{version}");
}

#[test]
fn every_type_is_read_or_refused_by_name() {
    let read = |descr: &str, size: usize| {
        opened(&file(1, &text(&format!("'{descr}'"), "False", "(1, 2)"), &vec![1; 2 * size]))
    };
    for (descr, size, dtype) in [
        ("<f4", 4, DType::F32),
        (">f4", 4, DType::F32),
        ("<f2", 2, DType::F32),
        (">f2", 2, DType::F32),
        ("<f8", 8, DType::F64),
        (">f8", 8, DType::F64),
        ("=f8", 8, DType::F64),
        ("f8", 8, DType::F64),
        ("<i4", 4, DType::I32),
        (">i4", 4, DType::I32),
        ("<i8", 8, DType::I64),
        (">i8", 8, DType::I64),
        ("|i1", 1, DType::I32),
        ("|u1", 1, DType::I32),
        ("|b1", 1, DType::I32),
        ("<i2", 2, DType::I32),
        (">u2", 2, DType::I32),
        ("<u4", 4, DType::I64),
    ] {
        let matrix = read(descr, size).unwrap();
        assert_eq!(matrix.dtype(), dtype, "{descr}");
        assert_eq!(block(&matrix).len(), 2 * dtype.size_bytes());
    }
    for (descr, words) in [
        ("<u8", "uint64"),
        ("<c16", "complex"),
        ("|O", "objects"),
        ("<U5", "text"),
        ("<f16", "longer float"),
        ("<M8[ns]", "times"),
        ("", "dtype ''"),
        ("\u{e9}", "dtype '\u{c3}\u{a9}'"),
        ("c\u{1b}[2J\t", "dtype 'c?[2J?' (complex)"),
    ] {
        let message = read(descr, 16).unwrap_err().to_string();
        assert!(message.contains(words) && message.contains("np.save(path"), "{descr}: {message}");
    }
    let nested = "[('a', '<f4'), ('b]', '<i8', (2,))]";
    let message = opened(&file(1, &text(nested, "False", "(1, 1)"), &[0; 20])).unwrap_err().to_string();
    assert!(message.contains("structures"), "{message}");
}

#[test]
fn one_dimension_is_a_row_until_it_is_transposed() {
    let data: Vec<u8> = (0..6).flat_map(|i| f64::from(i).to_le_bytes()).collect();
    for fortran in ["False", "True"] {
        let row = opened(&file(1, &text("'<f8'", fortran, "(6,)"), &data)).unwrap();
        assert_eq!((row.shape(), row.is_vector()), (Shape::new(1, 6), true));
        assert_eq!(block(&row), data);
        let column = row.transposed();
        if let Some(lines) = column.lines(column.shape().rect()) {
            assert_eq!(lines.lines, 1, "a line of six, not six of one");
        }
        assert_eq!((column.shape(), block(&column)), (Shape::new(6, 1), data.clone()));
    }
}

#[test]
fn headers_may_be_written_in_any_way_that_python_reads() {
    let is_read = |version: u8, header: &str| {
        let mut bytes = file(version, header, &[0; 48]);
        if version < 3 {
            // Latin-1.
            let latin: Vec<u8> = header.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
            bytes = file(version, &" ".repeat(latin.len()), &[0; 48]);
            let start = bytes.len() - 48 - latin.len();
            bytes[start..start + latin.len()].copy_from_slice(&latin);
        }
        parse(&bytes).map(|header| header.shape)
    };
    let written = |shape: &str| format!("{{'shape': {shape}, \"descr\": 'f8', 'fortran_order': False}}");
    for header in [
        written("(0x2, 0b11)"),
        written("(2, 3,)") + " # two by three\n\n",
        written("(2, # rows: \u{e9}\n 3)"),
        written("(+2, 0o3)"),
        "(".to_owned() + &written("(2, 3)") + ")",
        written("(9, 9), 'shape': (2, 3)"),
    ] {
        for version in 1..=3 {
            assert_eq!(is_read(version, &header), Ok(Shape::new(2, 3)), "{version} {header}");
        }
    }
    for header in [
        written("[2, 3]"),
        written("(2, 3.0)"),
        written("(2, -3)"),
        written("(2, 3), 'more': 1"),
        written("(2, 03)"),
        written("(2, 3)") + ",",
        written("(2, 3)").replace("False", "0"),
        "(2, 3)".to_owned(),
    ] {
        let why = is_read(1, &header).unwrap_err();
        assert!(why.contains("header is damaged"), "{why}");
    }
    assert_eq!(is_read(2, &written("(2L, 3 L)")), Ok(Shape::new(2, 3)));
    assert!(is_read(3, &written("(2L, 3L)")).is_err(), "3.0 is later than Python 2");
    let long = written("(2, 3)") + &" ".repeat(10_000);
    assert!(is_read(2, &long).unwrap_err().contains("10000 are read"));
}

#[test]
fn other_dimensions_are_refused_with_the_reshape_that_helps() {
    let message =
        |shape: &str| opened(&file(1, &text("'<f8'", "False", shape), &[0; 800])).unwrap_err().to_string();
    assert!(message("()").contains("is 0-dimensional"));
    assert!(message("(2, 3, 4)").contains("is 3-dimensional (shape (2, 3, 4))"));
    let many = message(&format!("({})", "1, ".repeat(1000)));
    assert!(many.contains("is 1000-dimensional (shape (1, 1, ") && many.len() < 500, "{many}");
    assert!(message("(-1, 2)").contains("header is damaged"));
    assert!(message("(4294967296, 4294967296)").contains("2^63"));
    assert!(message("(99999999999999999999, 1)").contains("header is damaged"));
}

#[test]
fn short_foreign_and_long_files() {
    let whole = file(1, &text("'<f4'", "False", "(2L, 2L)"), &[0; 16]);
    assert!(opened(&whole).is_ok(), "Python 2 wrote 2L");
    for len in 1..whole.len() {
        assert!(opened(&whole[..len]).is_err(), "cut to {len} bytes");
    }
    let cut = opened(&whole[..whole.len() - 1]).unwrap_err().to_string();
    assert!(cut.contains("a.npy: holds 15 data bytes") && cut.contains("cut short"), "{cut}");
    let mut long = whole.clone();
    long.extend([1, 2, 3]);
    assert_eq!(block(&opened(&long).unwrap()).len(), 16, "numpy.load allows trailing bytes");
    assert!(opened(b"PKzip").unwrap_err().to_string().contains("is not a .npy file"));
    assert!(opened(b"PK\x03\x04zip").unwrap_err().to_string().contains("np.load(FILE)[NAME]"));
}

#[test]
fn misaligned_elements_are_read_by_copying() {
    let data: Vec<u8> = (0..6).flat_map(|i| f64::from(i).to_le_bytes()).collect();
    let mut lined = 0;
    for pad in 0..8 {
        let header = format!("{}{}", text("'<f8'", "False", "(2, 3)"), " ".repeat(pad));
        let matrix = opened(&file(1, &header, &data)).unwrap();
        lined += u32::from(matrix.lines(matrix.shape().rect()).is_some());
        assert_eq!(block(&matrix), data);
    }
    assert_eq!(lined, 1, "of eight starts one is aligned");
}

#[test]
fn matrices_without_elements_are_read() {
    for shape in ["(0, 3)", "(3, 0)", "(0, 0)", "(0, 4294967296)", "(0,)"] {
        let matrix = opened(&file(1, &text("'<f8'", "False", shape), &[])).unwrap();
        assert!(block(&matrix).is_empty());
        assert!(matrix.lines(matrix.shape().rect()).is_none_or(|lines| lines.line_bytes * lines.lines == 0));
    }
    for shape in ["(0, 4294967297)", "(1000000000000, 0)", "(0, 18446744073709551615)"] {
        let long = opened(&file(1, &text("'<f8'", "False", shape), &[])).unwrap_err().to_string();
        assert!(long.contains("a side is 4294967296 at most"), "{long}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
        let _ = parse(&file(1, "", &bytes));
        let text = String::from_utf8_lossy(&bytes);
        let _ = (fields(&text, false), fields(&text, true));
    }

    #[test]
    fn no_likely_header_makes_the_parser_panic(header in "[{}()\\[\\]:,' L0-9a-z<>_]{0,60}", version in 0u8..5) {
        let _ = parse(&file(version, &header, &[]));
        let _ = parse(&file(version, &text("'<f8'", "True", &header), &[]));
        let _ = parse(&file(version, &text(&header, "True", "(1, 1)"), &[]));
    }

    #[test]
    fn damaged_files_are_read_or_refused(
        at in 0usize..176, value: u8, cut in 0usize..176,
    ) {
        let mut bytes = write_header(Shape::new(2, 3), DType::F64);
        bytes.extend([0; 48]);
        bytes[at] = value;
        bytes.truncate(cut.max(1));
        if let Ok(matrix) = opened(&bytes) {
            block(&matrix);
        }
    }
}
