//! Right matrices pass, wrong elements are noticed, in chains as in single products.

use super::*;
use crate::Effort;
use bramble_matrix::{Element, Layout, Output, Rect, Span};

fn leaf(spec: &str) -> Arc<SourceExpression> {
    Arc::new(SourceExpression::Leaf(Matrix::open(spec).unwrap(), Some(Default::default())))
}

fn product(alpha: f64, a: &Arc<SourceExpression>, b: &Arc<SourceExpression>) -> Arc<SourceExpression> {
    Arc::new(SourceExpression::Product { alpha, a: a.clone(), b: b.clone() })
}

type Dense<T> = Vec<Vec<T>>;

/// The elements as machines would make them: each product and sum rounded to the type.
fn elements<T: Element>(of: &SourceExpression) -> Dense<T> {
    match of {
        SourceExpression::Leaf(matrix, _) => {
            let rect = matrix.shape().rect();
            let buffer = matrix.block(rect).unwrap();
            let view = matrix.block_view::<T>(rect, &buffer);
            (0..view.rows()).map(|i| (0..view.cols()).map(|j| view.at(i, j)).collect()).collect()
        }
        SourceExpression::Product { alpha, a, b } => {
            let (a, b) = (elements::<T>(a), elements::<T>(b));
            let element = |row: &Vec<T>, j: usize| {
                let sum = row.iter().zip(&b).fold(T::ZERO, |sum, (x, of_b)| sum.plus(x.times(of_b[j])));
                T::from_f64(*alpha).times(sum)
            };
            a.iter().map(|row| (0..b[0].len()).map(|j| element(row, j)).collect()).collect()
        }
        SourceExpression::Sum { x, y } => {
            let mut sum: Dense<T> = elements(&x.1);
            sum.iter_mut().flatten().for_each(|e| *e = T::from_f64(x.0).times(*e));
            for (row, other) in sum.iter_mut().zip(y.iter().flat_map(|y| elements::<T>(&y.1))) {
                let beta = T::from_f64(y.as_ref().unwrap().0);
                row.iter_mut().zip(other).for_each(|(e, other)| *e = e.plus(beta.times(other)));
            }
            sum
        }
        SourceExpression::Kept(kept) => elements(&kept.inner()),
    }
}

/// Sums of rows as two machines send them, each of which has some of the columns.
fn sums_of<T: Element>(matrix: &Dense<T>) -> Vec<(Span, Vec<u8>)> {
    let half = matrix[0].len() / 2;
    let part = |cols: std::ops::Range<usize>| {
        let one = |row: &Vec<T>| match T::DTYPE.is_float() {
            true => row[cols.clone()].iter().map(|x| x.to_f64()).sum::<f64>().to_le_bytes(),
            false => row[cols.clone()].iter().map(|x| x.to_f64() as i64).sum::<i64>().to_le_bytes(),
        };
        (Span::new(0, matrix.len() as u64), matrix.iter().flat_map(one).collect())
    };
    vec![part(0..half), part(half..matrix[0].len())]
}

/// Doubtful rows, and the wrong element, of a matrix with a fault added to element (3, 7).
fn judged<T: Element>(of: &SourceExpression, fault: f64, effort: Effort) -> (Vec<u64>, Option<(u64, u64)>) {
    let mut kept = elements::<T>(of);
    kept[3][7] = kept[3][7].plus(T::from_f64(fault));
    let rows = LineSums::of(of, 2).unwrap().doubtful(&sums_of(&kept), effort);
    let lines = ComputedLines::of(of, rows.clone()).unwrap();
    let row = |row: u64| kept[row as usize].iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
    let wrong = (0..rows.len()).find_map(|at| lines.wrong_element(at, &row(rows[at])));
    (rows, wrong)
}

/// A chain with a transpose and a sum: 2 (x W) (V − W)ᵀ.
fn chain(dtype: &str) -> SourceExpression {
    let (x, w, v) = (
        leaf(&format!("random:20x40:{dtype}:1")),
        leaf(&format!("random:40x40:{dtype}:2")),
        leaf(&format!("random:40x40:{dtype}:3")),
    );
    let sum = SourceExpression::Sum { x: (1.0, v), y: Some((-1.0, w.clone())) };
    Arc::unwrap_or_clone(product(2.0, &product(1.0, &x, &w), &Arc::new(sum.transposed())))
}

#[test]
fn right_matrices_pass_and_wrong_elements_are_found() {
    for effort in [Effort::Fast, Effort::Full] {
        let (f32s, f64s) = (chain("f32"), chain("f64"));
        for of in [f32s.clone(), f32s.transposed()] {
            let (rows, wrong) = judged::<f32>(&of, 0.0, effort);
            assert_eq!((rows.is_empty(), wrong), (effort == Effort::Fast, None));
            assert_eq!(judged::<f32>(&of, 0.05, effort).1, Some((3, 7)));
            assert_eq!(judged::<f32>(&of, f64::NAN, effort).1, Some((3, 7)));
        }
        let (rows, wrong) = judged::<f64>(&f64s, 0.0, effort);
        assert_eq!((rows.is_empty(), wrong), (effort == Effort::Fast, None));
        assert_eq!(judged::<f64>(&f64s, 1e-9, effort).1, Some((3, 7)));
    }
}

#[test]
fn integers_are_compared_exactly() {
    for dtype in ["i32", "i64"] {
        let of = chain(dtype);
        let judge = |fault: f64| match dtype {
            "i32" => {
                LineSums::of(&of, 1).unwrap().doubtful(&sums_of(&with_fault::<i32>(&of, fault)), Effort::Fast)
            }
            _ => {
                LineSums::of(&of, 1).unwrap().doubtful(&sums_of(&with_fault::<i64>(&of, fault)), Effort::Fast)
            }
        };
        assert!(judge(0.0).is_empty(), "{dtype}");
        assert_eq!(judge(1.0), vec![3], "{dtype}");
    }
}

fn with_fault<T: Element>(of: &SourceExpression, fault: f64) -> Dense<T> {
    let mut kept = elements::<T>(of);
    kept[3][7] = kept[3][7].plus(T::from_f64(fault));
    kept
}

#[test]
fn known_sums_are_not_read_again() {
    let (x, w) = (leaf("random:20x40:f32:1"), leaf("random:40x40:f32:2"));
    let of = product(1.0, &x, &w);
    assert_eq!(of.bytes_to_read(), (20 * 40 + 40 * 40 / 2) * 4);
    LineSums::of(&of, 1).unwrap();
    assert_eq!(of.bytes_to_read(), 20 * 40 * 4);
    assert_eq!(of.transposed().bytes_to_read(), (20 * 40 / 2 + 40 * 40) * 4);
    LineSums::of(&of.transposed(), 1).unwrap();
    assert_eq!(of.transposed().bytes_to_read(), 40 * 40 * 4);
}

/// Elements beyond the range of the type, and NaN in an operand, are not held against the machines.
#[test]
fn what_cannot_be_bounded_is_not_refused() {
    let output = Output::anonymous(Shape::new(20, 40), DType::F32).unwrap();
    let mut lease = output.lease(Shape::new(20, 40).rect());
    let mut view = lease.view_mut::<f32>();
    for i in 0..20 {
        for j in 0..40 {
            *view.at_mut(i, j) = if (i, j) == (2, 2) {
                f32::NAN
            } else if i == 3 {
                3e38
            } else {
                1.0
            };
        }
    }
    drop(lease);
    let x = output.seal().unwrap().matrix().unwrap();
    let rect = Rect::new(Span::new(0, 1), Span::new(0, 1));
    assert_eq!((x.layout(), x.part(rect).shape()), (Layout::RowMajor, Shape::new(1, 1)));
    let x = Arc::new(SourceExpression::Leaf(x, None));
    let of = product(1.0, &x, &leaf("random:40x40:f32:2"));
    for effort in [Effort::Fast, Effort::Full] {
        assert_eq!(judged::<f32>(&of, 0.0, effort).1, None);
    }
}

/// 1e-38 × (10 × (1e38 × W)): the matrix in the middle overflows, so the result is infinite where the expression is not.
#[test]
fn an_overflow_on_the_way_is_not_held_against_the_machines() {
    let scaled =
        |factor: f64, x: &Arc<SourceExpression>| SourceExpression::Sum { x: (factor, x.clone()), y: None };
    let passed = |of: SourceExpression| {
        let kept = elements::<f32>(&of);
        let turned = elements::<f32>(&of.transposed());
        let lines = LineSums::of(&of, 1).unwrap().known(&sums_of(&kept), &sums_of(&turned), 40);
        Arc::new(of.kept().passed(lines.map(Arc::new)))
    };
    let w = leaf("random:20x40:f32:2");
    let within = scaled(1e-30, &passed(scaled(1e30, &w)));
    let beyond = scaled(1e-38, &passed(scaled(10.0, &passed(scaled(1e38, &w)))));
    let kept = elements::<f32>(&beyond);
    let is_finite = |x: &f32| x.is_finite();
    let finite = kept.iter().flatten().filter(|x| is_finite(x)).count();
    assert!(finite > 100 && finite < 700, "{finite} of 800 are finite");
    for of in [within, beyond] {
        for effort in [Effort::Fast, Effort::Full] {
            assert_eq!(judged::<f32>(&of, 0.0, effort).1, None);
            assert_eq!(judged::<f32>(&of.transposed(), 0.0, effort).1, None);
        }
    }
    // Without an overflow behind it, an infinite element is wrong.
    assert_eq!(
        judged::<f32>(&scaled(1e-30, &passed(scaled(1e30, &w))), f64::INFINITY, Effort::Fast).1,
        Some((3, 7))
    );
}

/// The check of a product with a matrix that has passed reads none of that matrix's sources, and notices a wrong sum of it.
#[test]
fn checked_matrices_are_not_computed_again() {
    for dtype in ["f32", "i32"] {
        let made = Arc::new(chain(dtype));
        let known = |fault: f64| {
            let sums = LineSums::of(&made, 1).unwrap();
            let kept: Vec<Vec<f64>> = match dtype {
                "f32" => elements::<f32>(&made)
                    .iter()
                    .map(|row| row.iter().map(|x| f64::from(*x)).collect())
                    .collect(),
                _ => elements::<i32>(&made)
                    .iter()
                    .map(|row| row.iter().map(|x| f64::from(*x)).collect())
                    .collect(),
            };
            let number = |x: f64| {
                if dtype == "f32" { (x + fault).to_le_bytes() } else { ((x + fault) as i64).to_le_bytes() }
            };
            let rows = kept.iter().flat_map(|row| number(row.iter().sum())).collect();
            let columns = (0..40).flat_map(|j| number(kept.iter().map(|row| row[j]).sum())).collect();
            sums.known(&[(Span::new(0, 20), rows)], &[(Span::new(0, 40), columns)], 40).map(Arc::new)
        };
        let next = |fault: f64| {
            let kept = Arc::new(made.as_ref().clone().kept().passed(known(fault)));
            product(1.0, &kept, &leaf(&format!("random:40x30:{dtype}:9"))).transposed()
        };
        assert_eq!(next(0.0).bytes_to_read(), 40 * 30 * 4, "of the matrix that passed nothing is read");
        for (fault, is_doubtful) in [(0.0, false), (100.0, true)] {
            let of = next(fault);
            let sums = LineSums::of(&of, 1).unwrap();
            let right =
                if dtype == "f32" { sums_of(&elements::<f32>(&of)) } else { sums_of(&elements::<i32>(&of)) };
            assert_eq!(!sums.doubtful(&right, Effort::Fast).is_empty(), is_doubtful, "{dtype} {fault}");
        }
    }
}

/// A chain may be as long as its user likes, and an array may be its own operand again and again.
#[test]
fn long_chains_and_doubled_operands_cost_no_more_than_short_ones() {
    let w = leaf("random:40x40:f32:2");
    let mut chained = leaf("random:20x40:f32:1").as_ref().clone();
    let mut doubled = chained.clone();
    let (mut far_chain, mut far_double) = (0, 0);
    for step in 1..=100_000 {
        chained = product(1.0, &Arc::new(chained), &w).transposed().transposed().kept();
        let one = Arc::new(doubled);
        doubled = SourceExpression::Sum { x: (1.0, one.clone()), y: Some((1.0, one)) }
            .transposed()
            .kept()
            .transposed();
        for (far, of) in [(&mut far_chain, &mut chained), (&mut far_double, &mut doubled)] {
            if of.is_far() {
                *far = if *far == 0 { step } else { *far };
                // What a check does then: it has the elements.
                *of = leaf("random:20x40:f32:1").as_ref().clone();
            }
        }
    }
    assert_eq!((far_chain, far_double), (65, 11));
    assert!(chained.errors(false)[0] > 0.0 && doubled.bytes_of(false) > 0);
}
