//! Fetches whole arrays from the machines that hold the parts.
//!
//! Place in the flow: the user wants an array, or an operation needs one whose elements only machines have.
//!
//! Invariant: each part has the digest that its machine named when it was put or made; otherwise the machine is named.
//!
//! Deliberately absent: conversion and transposition. Elements come as they are stored.

use crate::{ArrayError, ArrayId, ArrayMachines, ArrayOperation, place_of};
use alloc::format;
use bramble_base::{Digest128, Rect};
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
    /// Fetches an array into an output of its shape and type.
    pub async fn fetch(&mut self, id: ArrayId, output: M::Output) -> Result<M::Output, ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        let mut parts = array.known_parts(self.holders)?;
        if array.layout.axis.is_none() {
            parts.truncate(1);
        }
        let wanted = parts.iter().map(|known| {
            let to = (known.part.rect.rows.start, known.part.rect.cols.start);
            (known.part.machine, RectToGet { number: known.number, rect: known.part.rect, to })
        });
        let got = self.machines.get(wanted.collect(), output).await;
        let (mut output, lost) = got.map_err(ArrayError::Shell)?;
        lost.iter().for_each(|machine| self.holders.lose(*machine));
        let of_lost = |known: &KnownPart| lost.contains(&known.part.machine);
        if let Some(part) = parts.iter().position(of_lost) {
            // Parts are in the order of the layout; of replicas only the first was asked for.
            return Err(array.lost(part));
        }
        for known in parts {
            let digest = self.machines.digest_in(&mut output, known.part.rect).await;
            if digest.map_err(ArrayError::Shell)? != known.digest {
                let machine = self.holders.name(known.part.machine);
                let (place, name) = (place_of(known.part.rect, array.layout.shape), &array.name);
                return Err(ArrayError::Wrong(format!(
                    "{place} of {name} has changed on {machine} since it was made or placed: check the memory of that machine, \
                     and make or place {name} again"
                )));
            }
        }
        Ok(output)
    }
}
