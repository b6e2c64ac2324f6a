//! How unevenly operands are scaled is measured.

use super::*;

fn operands<T: Element>(case: &Case<T>, layouts: [Layout; 2]) -> (Matrix, Matrix) {
    (matrix(case.m, case.k, &case.a, layouts[0]), matrix(case.k, case.n, &case.b, layouts[1]))
}

fn measured<T: Element>(case: &Case<T>) -> Scaling {
    let mut all = Vec::new();
    for layouts in ALL_LAYOUTS {
        let (a, b) = operands(case, [layouts[0], layouts[1]]);
        all.extend([0, 1, 3].map(|threads| scaling(&a, &b, threads).unwrap()));
    }
    assert!(all.iter().all(|one| one == &all[0]), "{all:?}");
    all[0]
}

#[test]
fn even_operands_are_not_bad() {
    for size in [(700, 70, 33), (64, 300, 900)] {
        let even = measured(&uniform::<f32>(size, 3));
        assert!(!even.is_bad() && even.bits() < 1.0, "{even}");
        let even = measured(&uniform::<f64>(size, 3));
        assert!(!even.is_bad() && even.bits() < 1.0, "{even}");
    }
}

#[test]
fn a_row_a_column_or_a_depth_that_is_scaled_shows() {
    let even = || uniform::<f64>((300, 200, 500), 1);
    let by = 2f64.powi(-12);
    let mut case = even();
    case.a[123 * 200..124 * 200].iter_mut().for_each(|x| *x *= by);
    let found = measured(&case);
    assert!(found.is_bad() && found.rows > 4000.0 && found.cols < 1.1 && found.depth < 1.1, "{found}");
    let mut case = even();
    case.b.iter_mut().skip(7).step_by(500).for_each(|x| *x *= by);
    let found = measured(&case);
    assert!(found.is_bad() && found.cols > 4000.0 && found.rows < 1.1 && found.depth < 1.1, "{found}");
    // Column l of A and row l of B against each other: every product is of the same size.
    let mut case = even();
    case.a.iter_mut().enumerate().for_each(|(at, x)| *x *= 2f64.powi((at % 200 / 10) as i32));
    case.b.iter_mut().enumerate().for_each(|(at, x)| *x *= 2f64.powi(-((at / 500 / 10) as i32)));
    let found = measured(&case);
    assert!(found.is_bad() && found.depth > 1e5 && found.rows < 3.0 && found.cols < 3.0, "{found}");
    // A row and a column together cost what neither costs alone.
    let mut case = even();
    case.a[..200].iter_mut().for_each(|x| *x *= 2f64.powi(-7));
    assert!(!measured(&case).is_bad());
    case.b.iter_mut().step_by(500).for_each(|x| *x *= 2f64.powi(-7));
    let found = measured(&case);
    assert!(found.is_bad() && (13.0..15.0).contains(&found.bits()), "{found}");
}

#[test]
fn zeros_and_one_large_column_are_harmless() {
    let mut case = uniform::<f32>((100, 90, 80), 1);
    case.a[90..180].fill(0.0);
    case.a.iter_mut().skip(4).step_by(90).for_each(|x| *x += 3.0);
    case.b.iter_mut().skip(9).step_by(80).for_each(|x| *x = 0.0);
    let found = measured(&case);
    assert!(!found.is_bad() && found.depth < 1.5, "{found}");
    case.a.fill(0.0);
    assert!(!measured(&case).is_bad());
    assert!(!measured(&uniform::<f64>((3, 0, 4), 1)).is_bad());
}

#[test]
fn nan_and_infinity_are_bad_and_the_largest_elements_are_told() {
    for wild in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 17, 30 * 37 - 1] {
            let mut case = uniform::<f32>((30, 37, 30), 1);
            case.a[at] = wild;
            assert!(measured(&case).is_bad(), "{wild}");
            let mut case = uniform::<f32>((30, 37, 30), 1);
            case.b[at] = wild;
            assert!(!measured(&case).is_finite, "{wild}");
        }
    }
    let mut case = uniform::<f32>((30, 37, 30), 1);
    (case.a[700], case.b[900]) = (-2e38, 1e36);
    let found = measured(&case);
    assert_eq!((found.largest, found.is_finite), ([f64::from(2e38f32), f64::from(1e36f32)], true));
    case.a.fill(0.0);
    assert_eq!(
        measured(&case).largest,
        [0.0, f64::from(1e36f32)],
        "one matrix is measured though the other is 0"
    );
    let mut case = uniform::<f64>((30, 37, 30), 1);
    case.a.iter_mut().chain(&mut case.b).for_each(|x| *x *= 1e-200);
    assert!(!measured(&case).is_bad());
    case.a[3] = f64::NEG_INFINITY;
    for layout in [Layout::RowMajor, Layout::ColMajor] {
        let a = matrix(30, 37, &case.a, layout);
        assert_eq!(largest_element(&a, 2).unwrap(), (f64::INFINITY, false));
        let b = matrix(37, 30, &vec![-7f32; 30 * 37], layout);
        assert_eq!(largest_element(&b, 2).unwrap(), (7.0, true));
    }
}

#[test]
fn integers_are_even_and_what_does_not_fit_is_an_error() {
    let mut case = uniform::<i32>((4, 5, 6), 1);
    case.a[3] = i32::MAX;
    assert_eq!(measured(&case).bits(), 0.0);
    let (a, b) = operands(&case, [Layout::RowMajor; 2]);
    assert!(scaling(&b, &b, 1).is_err());
    assert!(scaling(&a.converted(DType::F64).unwrap(), &b, 1).is_err());
}

#[test]
fn of_generated_operands_a_corner_is_read() {
    let made = |generator, rows, cols, dtype| {
        Matrix::generated("made", generator, Shape::new(rows, cols), dtype).unwrap()
    };
    for dtype in [DType::F32, DType::F64] {
        let random = made(Generator::random(1), 1 << 20, 1 << 20, dtype);
        let began = std::time::Instant::now();
        let found = scaling(&random, &random.clone().transposed(), 2).unwrap();
        assert!(!found.is_bad() && found.bits() < 1.0, "{found}");
        assert!(began.elapsed().as_secs() < 5, "2^40 elements must not be made");
        let one = made(Generator::identity(), 1 << 20, 1 << 20, dtype);
        assert!(!scaling(&one, &random, 2).unwrap().is_bad());
        let small = made(Generator::random(1), 40, 1 << 20, dtype);
        assert!(!scaling(&small, &random, 2).unwrap().is_bad());
    }
}
