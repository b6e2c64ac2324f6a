//! Fetches arrays, or rectangles of them, from the machines that hold the parts.
//!
//! Place in the flow: the user wants an array, or an operation needs one whose elements only machines have.
//!
//! Invariant: each part that is fetched as a whole has the digest that its machine named when it was put or made; otherwise the
//! machine is named.
//!
//! Deliberately absent: conversion and transposition. Elements come as they are stored.

use crate::{ArrayError, ArrayId, ArrayMachines, ArrayOperation, RecordedPart, place_of};
use alloc::format;
use bramble_base::{Digest128, Rect, Span};
use bramble_plan::PlacedPart;

/// A part of an array: which machine has it, its number there, and its digest.
#[derive(Clone, Copy, Debug)]
pub struct KnownPart {
    /// Machine and rectangle.
    pub part: PlacedPart,
    /// Its number at the machine.
    pub number: u64,
    /// Its digest.
    pub digest: Digest128,
}

/// A rectangle to get.
#[derive(Clone, Copy, Debug)]
pub struct RectToGet {
    /// Number of the part at its machine.
    pub number: u64,
    /// The rectangle of the array.
    pub rect: Rect,
    /// Its first row and column in the output.
    pub to: (u64, u64),
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Fetches all of an array into an output of its shape and type.
    pub async fn fetch(&mut self, id: ArrayId, output: M::Output) -> Result<M::Output, ArrayError<M::Error>> {
        let shape = self.arrays.get(id)?.layout.shape;
        self.fetch_rect(id, shape.rect(), output).await
    }

    /// Fetches a rectangle of an array into an output of its shape and type.
    pub async fn fetch_rect(
        &mut self,
        id: ArrayId,
        rect: Rect,
        output: M::Output,
    ) -> Result<M::Output, ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        if !rect.fits(array.layout.shape) {
            let (name, shape) = (&array.name, array.layout.shape);
            return Err(ArrayError::Operands(format!("{name} is {shape}, and has no {rect}")));
        }
        let common = |part: Rect| Rect::new(part.rows.intersect(rect.rows), part.cols.intersect(rect.cols));
        let mut parts = array.known_parts(self.holders)?;
        if array.layout.axis.is_none() {
            parts.truncate(1);
        }
        parts.retain(|known| !known.part.rect.disjoint(rect));
        let wanted = parts.iter().map(|known| {
            let piece = common(known.part.rect);
            let to = (piece.rows.start - rect.rows.start, piece.cols.start - rect.cols.start);
            (known.part.machine, RectToGet { number: known.number, rect: piece, to })
        });
        let got = self.machines.get(wanted.collect(), output).await;
        let (mut output, lost) = got.map_err(ArrayError::Shell)?;
        lost.iter().for_each(|machine| self.holders.lose(*machine));
        if let Some(known) = parts.iter().find(|known| lost.contains(&known.part.machine)) {
            let is_it = |part: &RecordedPart| part.number == known.number;
            return Err(array.lost(array.parts.iter().position(is_it).unwrap_or(0)));
        }
        // A piece of a part has no digest to compare with.
        for known in parts.into_iter().filter(|known| common(known.part.rect) == known.part.rect) {
            let part = known.part.rect;
            let moved = |span: Span, by: u64| Span::new(span.start - by, span.end - by);
            let there = Rect::new(moved(part.rows, rect.rows.start), moved(part.cols, rect.cols.start));
            let digest = self.machines.digest_in(&mut output, there).await;
            if digest.map_err(ArrayError::Shell)? != known.digest {
                let machine = self.holders.name(known.part.machine);
                let (place, name) = (place_of(part, array.layout.shape), &array.name);
                return Err(ArrayError::Wrong(format!(
                    "{place} of {name} has changed on {machine} since it was made or placed: check the memory of that machine, \
                     and make or place {name} again"
                )));
            }
        }
        Ok(output)
    }
}
