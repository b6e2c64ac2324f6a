//! Walking a share of the plan: which panel comes next, what memory it takes, which jobs it makes possible.
//!
//! Invariants: blocks in order, steps in order, and in a step panels of A and B alternate, so that the
//! first job can start after two panels and every further panel starts about as many jobs as there are
//! panels on the other side. The jobs behind a panel are in the frame that carries its last lines. A panel
//! is begun only when the credit covers all of it and of the tiles that its jobs begin. At most two blocks
//! are at a worker at once; their panels, which may be the same ones, have different ids.

use crate::limits::lines_per_frame;
use crate::message::{Job, MatrixHeader, Operation, Source, StoreHead, Then};
use bramble_matrix::{Layout, Rect, Span};
use bramble_plan::{Block, Plan};
use std::collections::VecDeque;

/// What the walk has to know of the operands.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// How A lies.
    pub a_layout: Layout,
    /// How B lies.
    pub b_layout: Layout,
    /// Whether the worker makes A itself.
    pub a_generated: bool,
    /// Whether the worker makes B itself.
    pub b_generated: bool,
    /// Whether the old C's tiles are sent (β ≠ 0); always by rows.
    pub reads_c: bool,
}

/// Which matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The left operand.
    A,
    /// The right operand.
    B,
    /// C: the old one, or (where memory is shared) the tile to be lent.
    C,
}

/// The rectangle of a matrix that a message's body consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of which matrix.
    pub which: Which,
    /// Which part.
    pub rect: Rect,
    /// Its bytes in the body.
    pub bytes: usize,
    /// Whether the memory itself is lent (tiles of C where memory is shared).
    pub lent: bool,
}

/// One store message: the head, and what its body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The head.
    pub head: StoreHead,
    /// The body, if there is one.
    pub piece: Option<Piece>,
}

impl Outgoing {
    /// Bytes of head and body, as the link window counts them.
    pub fn wire_bytes(&self) -> usize {
        4 + 24 * (self.head.matrices.len() + self.head.jobs.len()) + self.piece.map_or(0, |p| p.bytes)
    }
}

/// Where in its share a worker's stream is.
pub(super) struct Walk {
    share: usize,
    shares_memory: bool,
    next_block: u64,
    block: Option<Block>,
    /// The blocks that were begun and are not all back.
    out: Vec<OutBlock>,
    step: u64,
    a_sent: u64,
    b_sent: u64,
    /// Messages of the panel that was begun.
    ready: VecDeque<Outgoing>,
}

/// Blocks that a worker may have at once: one that is finishing while the next arrives.
const BLOCKS_AT_ONCE: usize = 2;

/// A block that is at the worker.
struct OutBlock {
    index: u64,
    tiles_left: u64,
    /// Whether its panels have the second set of ids.
    second_ids: bool,
}

/// A panel of the current step.
#[derive(Clone, Copy)]
enum Panel {
    A(u64),
    B(u64),
}

impl Walk {
    pub(super) fn new(share: usize, shares_memory: bool) -> Self {
        Self {
            share,
            shares_memory,
            next_block: 0,
            block: None,
            out: Vec::new(),
            step: 0,
            a_sent: 0,
            b_sent: 0,
            ready: VecDeque::new(),
        }
    }

    /// The next message, taking what it needs from `credit`; `None` at the end or where credit is short.
    pub(super) fn next(&mut self, plan: &Plan, operands: &Operands, credit: &mut u64) -> Option<Outgoing> {
        if self.ready.is_empty() {
            self.begin_panel(plan, operands, credit)?;
        }
        self.ready.pop_front()
    }

    /// The current block, entering the next one where the last is over.
    fn block(&mut self, plan: &Plan) -> Option<Block> {
        if self.block.is_none() && self.out.len() < BLOCKS_AT_ONCE {
            let block = plan.block(self.share, self.next_block)?;
            // Blocks may come back in any order, so take whichever set of ids is free.
            let second_ids = self.out.iter().any(|o| !o.second_ids);
            self.out.push(OutBlock { index: self.next_block, tiles_left: block.tiles(), second_ids });
            self.next_block += 1;
            self.step = block.steps.start;
            (self.a_sent, self.b_sent) = (0, 0);
            self.block = Some(block);
        }
        self.block
    }

    /// A tile has come back whole.
    pub(super) fn committed(&mut self, plan: &Plan, row: u64, col: u64) {
        let index = plan.shares[self.share].block_of(row, col);
        for block in &mut self.out {
            block.tiles_left -= u64::from(block.index == index);
        }
        self.out.retain(|block| block.tiles_left > 0);
    }

    /// What to add to the ids of the current block's panels: it is the last that was begun.
    fn id_offset(&self, plan: &Plan) -> u32 {
        if self.out.last().is_some_and(|o| o.second_ids) { plan.grid.ids() } else { 0 }
    }

    fn begin_panel(&mut self, plan: &Plan, operands: &Operands, credit: &mut u64) -> Option<()> {
        let block = self.block(plan)?;
        let a_count = block.tile_rows.len();
        let panel = if self.a_sent < a_count
            && (self.a_sent <= self.b_sent || self.b_sent == block.tile_cols.len())
        {
            Panel::A(block.tile_rows.start + self.a_sent)
        } else {
            Panel::B(block.tile_cols.start + self.b_sent)
        };
        let tiles = self.tiles_of(&block, panel);
        let ids = self.id_offset(plan);
        let mut header = panel_header(plan, operands, &block, panel, self.step);
        header.id += ids;
        let first = self.step == block.steps.start;
        let tile_headers: Vec<MatrixHeader> = if first {
            tiles.iter().map(|(i, j)| tile_header(plan, operands, *i, *j)).collect()
        } else {
            Vec::new()
        };
        let cost = header.charged_bytes() + tile_headers.iter().map(MatrixHeader::charged_bytes).sum::<u64>();
        *credit = credit.checked_sub(cost)?;
        let jobs = tiles.iter().map(|(i, j)| job(plan, &block, *i, *j, self.step, ids)).collect();
        let vacant = self.announce_tiles(plan, tile_headers);
        self.cut_panel(plan, header, panel, vacant, jobs);
        self.advance(&block, panel);
        Some(())
    }

    /// Tiles that have both panels of this step once this one is there.
    fn tiles_of(&self, block: &Block, panel: Panel) -> Vec<(u64, u64)> {
        let (rows, cols) = (block.tile_rows.start, block.tile_cols.start);
        match panel {
            Panel::A(i) => Span::new(cols, cols + self.b_sent).iter().map(|j| (i, j)).collect(),
            Panel::B(j) => Span::new(rows, rows + self.a_sent).iter().map(|i| (i, j)).collect(),
        }
    }

    /// Messages for tiles that come with elements or lent memory; gives back those that are only announced.
    fn announce_tiles(&mut self, plan: &Plan, headers: Vec<MatrixHeader>) -> Vec<MatrixHeader> {
        let mut vacant = Vec::new();
        for header in headers {
            let Some((i, j)) = plan.grid.tile_of(header.id) else { continue };
            let rect = plan.grid.tile(i, j);
            if self.shares_memory {
                let piece = Piece { which: Which::C, rect, bytes: here(header.bytes()), lent: true };
                let head = StoreHead { matrices: vec![header], jobs: Vec::new() };
                self.ready.push_back(Outgoing { head, piece: Some(piece) });
            } else if header.source == Source::Data {
                self.cut(header, Which::C, rect, Vec::new(), Vec::new());
            } else {
                vacant.push(header);
            }
        }
        vacant
    }

    fn cut_panel(
        &mut self,
        plan: &Plan,
        header: MatrixHeader,
        panel: Panel,
        tiles: Vec<MatrixHeader>,
        jobs: Vec<Job>,
    ) {
        let (which, rect) = match panel {
            Panel::A(i) => (Which::A, plan.grid.a_panel(i, self.step)),
            Panel::B(j) => (Which::B, plan.grid.b_panel(self.step, j)),
        };
        self.cut(header, which, rect, tiles, jobs);
    }

    /// Cuts a matrix into frames of whole lines. New tiles go with the first, jobs with the last.
    fn cut(
        &mut self,
        header: MatrixHeader,
        which: Which,
        rect: Rect,
        tiles: Vec<MatrixHeader>,
        jobs: Vec<Job>,
    ) {
        let (lines, line_bytes) = header.lines_total();
        let whole = self.shares_memory || header.source == Source::Generated;
        let per_frame = if whole { lines } else { lines_per_frame(line_bytes) };
        let mut first_line = 0;
        let mut tiles = tiles;
        while first_line < lines {
            let count = per_frame.min(lines - first_line);
            let part = MatrixHeader { first_line, lines: count, ..header };
            let bytes = here(part.body_bytes());
            let last = first_line + count == lines;
            let mut matrices = std::mem::take(&mut tiles);
            matrices.push(part);
            self.ready.push_back(Outgoing {
                head: StoreHead { matrices, jobs: if last { jobs.clone() } else { Vec::new() } },
                piece: Some(Piece { which, rect: lines_of(rect, &part), bytes, lent: false }),
            });
            first_line += count;
        }
    }

    /// Past this panel, and where that ends a step or a block, past that.
    fn advance(&mut self, block: &Block, panel: Panel) {
        match panel {
            Panel::A(_) => self.a_sent += 1,
            Panel::B(_) => self.b_sent += 1,
        }
        if self.a_sent == block.tile_rows.len() && self.b_sent == block.tile_cols.len() {
            (self.a_sent, self.b_sent) = (0, 0);
            self.step += 1;
            if self.step == block.steps.end {
                self.block = None;
            }
        }
    }
}

/// A side or a step of the plan, which has a limit far below 2^32.
fn small(x: u64) -> u32 {
    u32::try_from(x).unwrap_or_else(|_| panic!("the grid limits sides and steps, but here is {x}"))
}

/// Bytes of something that lies in this process's memory.
fn here(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or_else(|_| panic!("a piece of {bytes} bytes is said to be in memory"))
}

/// The lines of a rectangle that a header's frame carries.
fn lines_of(rect: Rect, part: &MatrixHeader) -> Rect {
    let (from, count) = (u64::from(part.first_line), u64::from(part.lines));
    let cut = |span: Span| Span::new(span.start + from, span.start + from + count);
    match part.layout {
        Layout::RowMajor => Rect::new(cut(rect.rows), rect.cols),
        Layout::ColMajor => Rect::new(rect.rows, cut(rect.cols)),
    }
}

fn whole_header(id: u32, rect: Rect, plan: &Plan, layout: Layout, source: Source) -> MatrixHeader {
    let shape = rect.shape();
    let mut header = MatrixHeader {
        id,
        rows: small(shape.rows),
        cols: small(shape.cols),
        first_line: 0,
        lines: 0,
        uses: 0,
        dtype: plan.problem.dtype,
        layout,
        source,
    };
    header.lines = header.lines_total().0;
    header
}

fn panel_header(plan: &Plan, operands: &Operands, block: &Block, panel: Panel, step: u64) -> MatrixHeader {
    let source = |generated: bool| if generated { Source::Generated } else { Source::Data };
    let (id, rect, layout, generated, uses) = match panel {
        Panel::A(i) => (
            plan.grid.a_id(i, step),
            plan.grid.a_panel(i, step),
            operands.a_layout,
            operands.a_generated,
            block.tile_cols.len(),
        ),
        Panel::B(j) => (
            plan.grid.b_id(step, j),
            plan.grid.b_panel(step, j),
            operands.b_layout,
            operands.b_generated,
            block.tile_rows.len(),
        ),
    };
    let Ok(uses) = u16::try_from(uses) else {
        panic!("a block of {uses} tiles across; plans make at most 1024")
    };
    MatrixHeader { uses, ..whole_header(id, rect, plan, layout, source(generated)) }
}

fn tile_header(plan: &Plan, operands: &Operands, i: u64, j: u64) -> MatrixHeader {
    let source = if operands.reads_c { Source::Data } else { Source::Vacant };
    whole_header(plan.grid.c_id(i, j), plan.grid.tile(i, j), plan, Layout::RowMajor, source)
}

fn job(plan: &Plan, block: &Block, i: u64, j: u64, step: u64, ids: u32) -> Job {
    Job {
        operation: Operation::Multiply,
        a: plan.grid.a_id(i, step) + ids,
        b: plan.grid.b_id(step, j) + ids,
        c: plan.grid.c_id(i, j),
        step: small(step),
        epoch: 0,
        then: if step + 1 == block.steps.end { Then::Return } else { Then::Continue },
    }
}
