//! Products of a client, as far as their placed operands go: which machine can compute what, and whether it can read what it
//! needs.
//!
//! Place in the flow: `client.rs` runs such a call as any other. The simulator's trials compute products.
//!
//! Invariants checked: the owners' shares cover the side of the product in order; every rectangle that an owner needs of a placed
//! operand lies in one part, at that machine, with the right elements.
//!
//! Deliberately absent: tiles, and operands that are sent.

use super::check::{is_corrupted, operand_value};
use super::client::{ArrayClient, CallOutcome};
use super::machine::viewed_in;
use super::matrix::{ArrayMatrix, viewed};
use bramble_arrays::{ArrayOperand, ResidentOperands, ResidentPanels};
use bramble_matrix::{MatrixInfo, Rect, Span};
use bramble_plan::{OwnedSpan, Ownership, ProductSide};

impl ArrayClient {
    /// Reads what the owners of a product need.
    pub(super) fn product(&mut self, operands: [&ArrayOperand<ArrayMatrix>; 2]) -> CallOutcome<()> {
        let connections: Vec<u64> = {
            let world = &mut *self.world.borrow_mut();
            world.seen.products += 1;
            world.connections_of(self.index).into_iter().map(|(_, connection)| connection).collect()
        };
        let Some(resident) = ResidentOperands::of::<_, _, String>(operands, &self.arrays)? else {
            assert!(
                operands.iter().all(|one| one.placed.is_none()),
                "violation: a placed operand is not read in place"
            );
            return Ok(());
        };
        resident.expected_ownership::<_, _, String>(&self.arrays)?;
        let Some(ownership) = resident.ownership::<_, _, String>(&self.arrays, &connections)? else {
            let is_lost = self.struck().losses > 0 && resident.left.is_some() && resident.right.is_some();
            assert!(is_lost, "violation: a product that nobody can compute");
            return Ok(());
        };
        self.world.borrow_mut().seen.both_placed +=
            u64::from(resident.left.is_some() && resident.right.is_some());
        let [left, right] = operands.map(|one| one.matrix.shape());
        let sides = [left.rows, left.cols, right.cols];
        let panels = resident.panels::<_, _, String>(&self.arrays)?;
        for (machine, [of_left, of_right]) in shares(&ownership, sides) {
            for ((panels, operand), rect) in panels.iter().zip(operands).zip([of_left, of_right]) {
                let Some(panels) = panels else { continue };
                self.read_panel(panels, operand, connections[machine], rect);
                let inner = self.inner(rect);
                self.read_panel(panels, operand, connections[machine], inner);
            }
        }
        Ok(())
    }

    /// A rectangle within another one.
    fn inner(&self, rect: Rect) -> Rect {
        let random = &mut self.world.borrow_mut().random;
        let mut part = |span: Span| {
            let start = span.start + random.below(span.len());
            Span::new(start, start + 1 + random.below(span.end - start))
        };
        Rect::new(part(rect.rows), part(rect.cols))
    }

    /// Reads a rectangle of an operand at a machine.
    fn read_panel(
        &self,
        panels: &ResidentPanels,
        operand: &ArrayOperand<ArrayMatrix>,
        connection: u64,
        rect: Rect,
    ) {
        let (name, shape) = (operand.matrix.name(), operand.matrix.shape());
        let Some(view) = panels.view(rect) else { panic!("violation: {rect} of {name} is not in one part") };
        let world = self.world.borrow();
        let Some(store) = world.stores.get(&connection) else { panic!("violation: an owner is lost") };
        let used =
            view.rect(rect.shape()).map(|stored| if view.transposed { stored.transposed() } else { stored });
        assert!(used == Some(rect), "violation: the view of {rect} of {name} is one of {used:?}");
        let read = viewed_in(store, view.array, rect, view.transposed, operand.matrix.dtype());
        let array = operand.placed.and_then(|placed| self.arrays.get::<String>(placed.array).ok());
        let Some(array) = array.filter(|array| !is_corrupted(array, &world)) else {
            return;
        };
        let value = operand_value(operand, &self.arrays);
        let right = viewed(shape.rect(), &value, rect, false);
        assert!(
            read == right,
            "violation: {rect} of {name}, placed as {:?}, has wrong elements",
            array.layout.axis
        );
    }
}

/// The rectangles of the left and of the right operand that each owner needs.
fn shares(ownership: &Ownership, [m, k, n]: [u64; 3]) -> Vec<(usize, [Rect; 2])> {
    let of = |rows: Span, depth: Span, cols: Span| [Rect::new(rows, depth), Rect::new(depth, cols)];
    let [rows, depth, cols] = [m, k, n].map(|side| Span::new(0, side));
    match ownership {
        Ownership::Replicas(machines) => {
            assert!(!machines.is_empty(), "violation: no machine has the operand");
            machines.iter().map(|machine| (*machine, of(rows, depth, cols))).collect()
        }
        Ownership::Cut(side, spans) => {
            let reached = spans.iter().fold(0, |reached, owned| {
                assert!(
                    owned.span.start == reached,
                    "violation: shares of a product out of order: {spans:?}"
                );
                owned.span.end
            });
            let (length, share): (u64, &dyn Fn(Span) -> [Rect; 2]) = match side {
                ProductSide::Rows => (m, &|span| of(span, depth, cols)),
                ProductSide::Depth => (k, &|span| of(rows, span, cols)),
                ProductSide::Cols => (n, &|span| of(rows, depth, span)),
            };
            assert!(reached == length, "violation: the shares end at {reached} of {length}");
            spans.iter().map(|OwnedSpan { machine, span }| (*machine, share(*span))).collect()
        }
    }
}
