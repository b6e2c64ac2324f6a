//! Tests of how a job ends, with a stub library that simulates the other ranks.
#![allow(unsafe_code)] // The library that is stood in for has calls that are unsafe; these touch no memory.

use super::super::table::{Calls, Complete, Message, MpiFault};
use super::super::{Engine, LEAVE_TAG, Portion, World};
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::rc::Rc;
use std::time::Duration;

/// The calls that the library received.
#[derive(Default)]
struct Told {
    is_finalized: Cell<bool>,
    aborted: Cell<Option<c_int>>,
    /// Target rank and tag of each send.
    sent: RefCell<Vec<(c_int, c_int)>>,
}

/// A stub library: messages from the ranks that stand still never arrive; every send succeeds.
struct Stub {
    told: Rc<Told>,
    stand_still: Vec<c_int>,
    /// Every call fails.
    fails: bool,
    /// For each request, whether it is complete.
    requests: RefCell<Vec<bool>>,
}

impl Stub {
    fn call(&self) -> Result<(), MpiFault> {
        if self.fails { Err(MpiFault("it has failed".to_owned())) } else { Ok(()) }
    }
}

impl Calls for Stub {
    fn init(&self) -> Result<(), MpiFault> {
        unreachable!("it has been entered")
    }

    fn rank_and_size(&self) -> Result<(c_int, c_int), MpiFault> {
        unreachable!("it has been entered")
    }

    fn version(&self) -> String {
        "stub".to_owned()
    }

    unsafe fn send(&self, _: *const u8, message: Message, _: bool) -> Result<(), MpiFault> {
        self.call()?;
        self.told.sent.borrow_mut().push((message.peer, message.tag));
        self.requests.borrow_mut().push(true);
        Ok(())
    }

    unsafe fn receive(&self, _: *mut u8, message: Message) -> Result<(), MpiFault> {
        self.call()?;
        self.requests.borrow_mut().push(!self.stand_still.contains(&message.peer));
        Ok(())
    }

    fn test_any(&self) -> Result<Option<Complete>, MpiFault> {
        let mut requests = self.requests.borrow_mut();
        let index = requests.iter().position(|is_complete| *is_complete);
        Ok(index.map(|index| {
            requests.swap_remove(index);
            Complete { index, bytes: 1 }
        }))
    }

    fn under_way(&self) -> usize {
        self.requests.borrow().len()
    }

    fn wait(&self, _: usize) -> Result<(), MpiFault> {
        unreachable!("nothing is measured")
    }

    fn gather_all(&self, _: &[u8], _: usize) -> Result<Vec<u8>, MpiFault> {
        unreachable!("it has been entered")
    }

    fn finalize(&self) -> Result<(), MpiFault> {
        assert!(self.requests.borrow().is_empty(), "something is under way");
        self.told.is_finalized.set(true);
        Ok(())
    }

    fn abort(&self, code: c_int) {
        self.told.aborted.set(Some(code));
    }
}

/// Lets one rank of four leave; returns whether it returned, and the calls.
fn left(rank: usize, stand_still: &[c_int]) -> (bool, Rc<Told>) {
    leaves(rank, stand_still, false)
}

fn leaves(rank: usize, stand_still: &[c_int], fails: bool) -> (bool, Rc<Told>) {
    let told = Rc::new(Told::default());
    let (stand_still, requests) = (stand_still.to_vec(), RefCell::default());
    let stub = Stub { told: told.clone(), stand_still, fails, requests };
    let world = World {
        engine: Rc::new(Engine::new(Box::new(stub))),
        rank,
        size: 4,
        library: "stub".to_owned(),
        portion: Portion { ranks: 4, sharers: 4, place: rank },
        links: RefCell::new(vec![0; 4]),
        order: RefCell::default(),
        when_late: |late| panic!("{late:?}"),
    };
    (world.leave_within(Duration::from_millis(20), 3).is_ok(), told)
}

#[test]
fn the_first_ends_with_all_others() {
    let (is_left, told) = left(0, &[]);
    assert!(is_left && told.is_finalized.get());
    assert_eq!(told.aborted.get(), None);
}

/// `MPI_Finalize` waits for all ranks: rank 0 would never return, although it has nothing in flight with the
/// stopped rank.
#[test]
fn one_that_stands_still_is_not_waited_for() {
    let (is_left, told) = left(0, &[2]);
    assert!(!is_left && !told.is_finalized.get());
    assert_eq!(told.aborted.get(), Some(3));
}

/// Nothing is in flight then, and the other ranks do not know of the failure.
#[test]
fn where_the_library_has_failed_no_rank_is_waited_for() {
    for rank in [0, 1] {
        let (is_left, told) = leaves(rank, &[], true);
        assert!(!is_left && !told.is_finalized.get());
        assert_eq!(told.aborted.get(), Some(3));
    }
}

#[test]
fn each_tells_the_first_that_it_leaves() {
    // It has heard nothing from the other ranks, and waits for them in the library.
    let (is_left, told) = left(2, &[0, 1, 3]);
    assert!(is_left && told.is_finalized.get());
    assert_eq!(*told.sent.borrow(), [(0, LEAVE_TAG)]);
}
