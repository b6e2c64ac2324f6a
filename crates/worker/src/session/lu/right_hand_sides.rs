//! Right-hand sides at a worker: it solves them for its blocks, or multiplies its columns by them.
//!
//! Place in the flow: after the elimination. The primary sends rows; this file lets compute threads work on them when the last
//! has come, and returns the result under the same head.
//!
//! Invariants: rows come in order, each once, and one transfer at a time. A product is cut into bands of rows, for all threads;
//! it is returned when all bands are there.
//!
//! Deliberately absent: the order in which workers solve (`schedule::lu`), and the arithmetic (crate `lu`).

use super::panels::{ElementBytes, copy_bytes};
use super::{LuDone, LuOutput, TypedSession};
use crate::session::WorkerError;
use bramble_kernel::lu::LuElement;
use bramble_link::{Body, Frame, SharedRegion};
use bramble_schedule::worker::Priority;
use bramble_wire::ProtocolError;
use bramble_wire::message::{Kind, LuOrigin, LuPass, LuRows, lu_frames};
use std::sync::Arc;

/// Rows of a product that one task makes.
const PRODUCT_ROWS: usize = 1024;

/// Right-hand sides that this worker has something to do with.
#[derive(Default)]
pub(super) struct RightHandSides {
    /// Rows that are arriving from the primary.
    coming: Vec<f64>,
    product: Option<LuProduct>,
}

/// This worker's part of a product, as far as it is there.
struct LuProduct {
    head: LuRows,
    sum: Vec<f64>,
    /// Tasks that have not ended.
    waiting: usize,
}

impl<T: LuElement> TypedSession<T> {
    /// Right-hand sides from the primary; work begins with the last of them.
    pub(super) fn take_rows(
        &mut self,
        rows: LuRows,
        body: &[u8],
        out: &mut LuOutput,
    ) -> Result<(), WorkerError> {
        let LuRows { total, first, rows: count, width, .. } = rows;
        let wrong =
            || ProtocolError::new(format!("{count} rows from {first} on, of {total}, are not expected"));
        let is_idle = self.returning.is_some() && self.right.product.is_none();
        let fits = total <= self.begin.order && width <= self.begin.extra && is_idle;
        if !fits || self.right.coming.len() != first * width {
            return Err(wrong().into());
        }
        self.right.coming.resize((first + count) * width, 0.0);
        if !copy_bytes(body, &mut self.right.coming[first * width..]) {
            return Err(wrong().into());
        }
        if first + count < total {
            return Ok(());
        }
        let x = std::mem::take(&mut self.right.coming);
        match rows.pass {
            LuPass::Multiply if total < self.begin.order || self.begin.origin != LuOrigin::HplMxp => {
                return Err(wrong().into());
            }
            LuPass::Multiply => self.multiply(rows, x, out),
            LuPass::Forward | LuPass::Back => self.solve(rows, x, out),
        }
        Ok(())
    }

    /// Solves right-hand sides for some blocks.
    fn solve(&self, rows: LuRows, mut x: Vec<f64>, out: &mut LuOutput) {
        let (part, kernel) = (self.part.clone(), self.kernel.clone());
        let solve = move || {
            let (pass, blocks) = (rows.pass, rows.blocks.clone());
            match part.solve(&*kernel, (pass, blocks), &mut x, rows.width) {
                Ok(true) => LuDone::Solved(rows, x),
                Ok(false) => LuDone::Failed(format!("blocks {:?} are not here", rows.blocks)),
                Err(e) => LuDone::Failed(e.to_string()),
            }
        };
        out.work.push((Box::new(solve), Priority(0)));
    }

    /// Multiplies this worker's columns by the rows of `x`.
    fn multiply(&mut self, head: LuRows, x: Vec<f64>, out: &mut LuOutput) {
        let (order, width, x) = (self.begin.order, head.width, Arc::new(x));
        let bands = (0..order).step_by(PRODUCT_ROWS).map(|first| first..order.min(first + PRODUCT_ROWS));
        self.right.product = Some(LuProduct { head, sum: vec![0.0; order * width], waiting: bands.len() });
        for band in bands {
            let (part, kernel, x) = (self.part.clone(), self.kernel.clone(), x.clone());
            let multiply = move || match part.multiply(&*kernel, band.clone(), &x, width) {
                Some(sum) => LuDone::Multiplied(band.start, sum),
                None => LuDone::Failed("a product with columns that cannot be generated again".to_owned()),
            };
            out.work.push((Box::new(multiply), Priority(0)));
        }
    }

    /// Takes some rows of a product; returns it with the last.
    pub(super) fn take_product(&mut self, first: usize, part: &[f64], out: &mut LuOutput) {
        let Some(product) = &mut self.right.product else { return };
        let start = first * product.head.width;
        product.sum[start..start + part.len()].copy_from_slice(part);
        product.waiting -= 1;
        if product.waiting > 0 {
            return;
        }
        if let Some(LuProduct { head, sum, .. }) = self.right.product.take() {
            self.send_rows(&head, sum, out);
        }
    }

    /// Sends right-hand sides under the head of their transfer.
    pub(super) fn send_rows(&self, of: &LuRows, x: Vec<f64>, out: &mut LuOutput) {
        let line = of.width * size_of::<f64>();
        let owner: Arc<ElementBytes<f64>> = Arc::new(ElementBytes(x));
        for frame in lu_frames(of.total, line) {
            let head = LuRows { first: frame.start, rows: frame.len(), ..of.clone() };
            let (start, len) = (frame.start * line, frame.len() * line);
            let body = Body::Shared(SharedRegion::new(owner.clone(), start, len, len, 1));
            out.frames.push(Frame::new(Kind::LuRows.code(), head.encode(), body));
        }
    }
}
