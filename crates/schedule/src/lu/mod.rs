//! LU factorisation by block columns: the order of the tasks at one machine, and the exchange of panels between machines.
//!
//! Place in the flow: the crate `lu` runs `LuOrder` for one machine; a worker runs `LuNode`, which contains one. The
//! primary sends right-hand sides through the factors in the order of `LuExchange`, or brings the factors home with `LuHome`,
//! and asks `LuSurvival` what follows when a worker is lost.
//!
//! Deliberately absent: elements, threads, links, and which machine gets which columns (`plan`).

mod home;
mod node;
mod order;
mod substitution;
mod survival;

pub use home::{LuHome, LuPivots, LuPlaces};
pub use node::{LuAction, LuEvent, LuNode};
pub use order::{LuOrder, LuShape, LuTask};
pub use substitution::{LuExchange, apply_pivots};
pub use survival::{LuAfterLoss, LuLoss, LuSurvival};
