//! Matrices that are placed on machines (*arrays*): which machine holds which part, and what the primary does to put, make,
//! fetch, reduce and restore them.
//!
//! Place in the flow: between products. An operation (`ArrayOperation`) decides; a shell carries out, through the trait
//! `ArrayMachines`: the primary's sends frames to workers, the simulator's moves elements between simulated machines, and loses
//! some of these.
//!
//! Invariants: an array is recorded when machines have confirmed all its parts. After an error no machine holds anything that is
//! not recorded, as far as it can still be reached. The number of a part or of a block is never used twice. The same answers of
//! the machines give the same questions.
//!
//! Deliberately absent: sockets, files, threads, clocks, elements. Operations are `async` since they wait for machines, but they
//! know no executor (docs/decisions/0072-operations-on-arrays-as-async-functions.md).
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod asking;
mod error;
mod fetching;
mod holders;
mod machines;
mod making;
mod operands;
mod putting;
mod reducing;
mod registry;
mod restoring;
mod retries;
mod sums;

pub use asking::{
    Answer, Asking, HeldMeaning, NextMessage, PartToPut, Question, QuestionMessage, QuestionRound, Refusal,
    TravellingBlock,
};
pub use error::ArrayError;
pub use fetching::{KnownPart, RectToGet};
pub use holders::{ArrayHolder, ArrayHolders};
pub use machines::{
    ArrayMachines, ArrayOperation, ArraysOf, IntroducedHolders, MachineTask, TaskEnd, TaskOutcome,
};
pub use making::{MadeArray, MadeFrom, MakeOrder, UnfinishedArray};
pub use operands::{ArrayOperand, PlacedOperand, ResidentOperands, ResidentPanels};
pub use reducing::{ReducePlan, ReducedFrom, ReducedParts};
pub use registry::{ArrayId, ArrayOrigin, PlacedArray, PlacedArrays, RecordedPart, place_of};
pub use restoring::{Restoring, changed};
pub use retries::{GivesUp, LossRetries};
pub use sums::{PartKey, SumsOfPart, SumsOfParts};
