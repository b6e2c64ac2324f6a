//! A plan as text, picture and JSON.
//!
//! Place in the flow: `view` has the decision and its machines; `text` prints it with `picture`, `json` makes the object
//! `bramble.plan/1`, and both ask `owners` which machine computes what.

pub mod json;
pub mod owners;
pub mod picture;
pub mod text;
pub mod view;
