//! Right-hand sides on their way through the workers: solved with their factors, or multiplied by their columns.
//!
//! Place in the flow: after the elimination (`mod.rs`), and while a solution is corrected (`refined.rs`).
//!
//! Invariants: the workers solve one after another, in the order of `schedule::lu::LuExchange`; they multiply side by side, and
//! their parts are added in the order of the ring, so that the sum does not depend on who answers first. Every wait has a
//! deadline.
//!
//! Deliberately absent: the arithmetic of the workers (crate `lu`).

use super::SystemRun;
use super::links::Heard;
use crate::PrimaryError;
use bramble_link::{Body, Frame, SharedRegion};
use bramble_schedule::lu::LuExchange;
use bramble_wire::limits::LU_ANSWER_MAX;
use bramble_wire::message::{Kind, LuPass, LuRows, lu_frames};
use std::sync::Arc;

impl SystemRun {
    /// Appends the next rows; false for any others.
    pub(super) fn take(&self, rows: &LuRows, body: &[u8], width: usize, to: &mut Vec<f64>) -> bool {
        let first = to.len();
        if rows.width != width
            || first != rows.first * width
            || body.len() != rows.rows * width * size_of::<f64>()
        {
            return false;
        }
        to.resize(first + rows.rows * width, 0.0);
        bytemuck::cast_slice_mut(&mut to[first..]).copy_from_slice(body);
        true
    }

    /// One pass of right-hand sides through the owners of the blocks.
    pub(super) async fn substitute(
        &mut self,
        x: Vec<f64>,
        pass: LuPass,
        width: usize,
    ) -> Result<Vec<f64>, PrimaryError> {
        let mut x = x;
        for visit in LuExchange::all(&self.begin, pass) {
            let rows = visit.rows.start * width..visit.rows.end * width;
            let answer = tokio::time::timeout(LU_ANSWER_MAX, self.exchange(&visit, &x[rows.clone()], width));
            let Ok(solved) = answer.await else { return Err(self.without_answer(visit.owner)) };
            x[rows].copy_from_slice(&solved?);
        }
        Ok(x)
    }

    /// Lets the owner of some blocks solve for them.
    async fn exchange(
        &mut self,
        visit: &LuExchange,
        x: &[f64],
        width: usize,
    ) -> Result<Vec<f64>, PrimaryError> {
        let LuExchange { owner, pass, blocks, rows } = visit;
        let head =
            LuRows { pass: *pass, blocks: blocks.clone(), width, total: rows.len(), first: 0, rows: 0 };
        self.send_rows(*owner, &head, &Arc::new(bytemuck::cast_slice(x).to_vec()));
        let mut solved = Vec::new();
        while solved.len() < x.len() {
            match self.links.next().await? {
                (from, Heard::Rows(rows, body))
                    if from == *owner
                        && (rows.pass, &rows.blocks) == (*pass, blocks)
                        && self.take(&rows, &body, width, &mut solved) => {}
                (from, _) => return Err(self.links.out_of_place(from)),
            }
        }
        Ok(solved)
    }

    /// A X for right-hand sides of as many rows as A: each worker multiplies its own columns.
    pub(super) async fn multiply(&mut self, x: &[f64], width: usize) -> Result<Vec<f64>, PrimaryError> {
        let (order, blocks) = (self.begin.order, 0..self.begin.panels());
        let head = LuRows { pass: LuPass::Multiply, blocks, width, total: order, first: 0, rows: 0 };
        let bytes = Arc::new(bytemuck::cast_slice(x).to_vec());
        (0..self.links.count()).for_each(|worker| self.send_rows(worker, &head, &bytes));
        let mut parts = vec![Vec::new(); self.links.count()];
        let answers = tokio::time::timeout(LU_ANSWER_MAX, self.parts(&mut parts, &head));
        let Ok(answers) = answers.await else {
            let missing = parts.iter().position(|part| part.len() < x.len()).unwrap_or_default();
            return Err(self.without_answer(missing));
        };
        answers?;
        let mut sum = vec![0.0; x.len()];
        for part in &parts {
            sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        Ok(sum)
    }

    /// Collects every worker's part of a product.
    async fn parts(&mut self, parts: &mut [Vec<f64>], head: &LuRows) -> Result<(), PrimaryError> {
        let elements = head.total * head.width;
        while parts.iter().any(|part| part.len() < elements) {
            match self.links.next().await? {
                (from, Heard::Rows(rows, body))
                    if (rows.pass, rows.total) == (head.pass, head.total)
                        && self.take(&rows, &body, head.width, &mut parts[from]) => {}
                (from, _) => return Err(self.links.out_of_place(from)),
            }
        }
        Ok(())
    }

    /// Sends right-hand sides to a worker, under the head of the whole transfer.
    fn send_rows(&self, to: usize, head: &LuRows, bytes: &Arc<Vec<u8>>) {
        let line = head.width * size_of::<f64>();
        for frame in lu_frames(head.total, line) {
            let head = LuRows { first: frame.start, rows: frame.len(), ..head.clone() };
            let (start, len) = (frame.start * line, frame.len() * line);
            let body = Body::Shared(SharedRegion::new(bytes.clone(), start, len, len, 1));
            self.links.send(to, Frame::new(Kind::LuRows.code(), head.encode(), body));
        }
    }

    fn without_answer(&self, at: usize) -> PrimaryError {
        let why = format!("it has not solved its part for {} s", LU_ANSWER_MAX.as_secs());
        PrimaryError::Unreachable { name: self.links.name(at).to_owned(), why }
    }
}
