#![allow(unsafe_code, clippy::print_stdout, clippy::unwrap_used, missing_docs)]
use bramble_kernel::{KernelName, Product, open};
use bramble_matrix::{DType, Output, Rect, Shape, Span, View, ViewMut};
use std::time::Instant;
fn main() {
    let k = open(KernelName::Simd).unwrap();
    for depth in [128usize, 192, 256, 384] {
        let (rows, cols) = (6000usize, 6000usize);
        let out = Output::anonymous(Shape::new(rows as u64, (cols + 8) as u64), DType::F64).unwrap();
        let mut lease = out.lease(Rect::new(Span::new(0, rows as u64), Span::new(0, cols as u64)));
        let l = vec![0.3f64; rows * depth];
        for width in [depth, 512usize, 1024, 2048] {
            let u = vec![0.1f64; depth * width];
            for (what, rs, cs) in [("Lcol", 1, rows), ("Lrow", depth, 1)] {
                for beta in [0.0, 1.0] {
                    let mut best = f64::INFINITY;
                    for rep in 0..5 {
                        let mut v = lease.view_mut::<f64>();
                        let first = (rep * 512) % (cols - width);
                        let c =
                            unsafe { ViewMut::from_raw(v.as_mut_ptr().add(first), rows, width, cols + 8, 1) };
                        let t = Instant::now();
                        k.multiply(
                            Product::new(
                                -1.0,
                                View::new(&l, rows, depth, rs, cs),
                                View::row_major(&u, depth, width),
                                beta,
                                c,
                            )
                            .into(),
                        );
                        best = best.min(t.elapsed().as_secs_f64());
                    }
                    print!(
                        "{what} k{depth} w{width} b{beta} {:.0}   ",
                        2.0 * (rows * depth * width) as f64 / best / 1e9
                    );
                }
            }
            println!();
        }
    }
}
