//! A client: a primary with its own arrays, which runs calls one after another over machines that it shares with other clients.
//!
//! Place in the flow: `mod.rs` runs all clients in turns; the loop of a call is that of `crates/client/src/calls.rs`.
//!
//! Invariants: after each operation the rules of `check.rs` hold, a success has the elements of the model, and a failure a cause
//! (`causes.rs`). After a failed call the client has the same arrays as before.
//!
//! Deliberately absent: products themselves; only the reading of their operands is checked (`operands.rs`).

use super::calls::{ArrayCall, CallDraw, PlacementWish};
use super::causes::{CallFailure, FailedCall, check_cause};
use super::check::{ClientArrays, check_rules};
use super::machines::{ClientMachines, turn};
use super::matrix::{ArrayMatrix, ArrayOutput};
use super::scenario::ClientSetting;
use super::world::{ArrayWorld, StruckClient};
use bramble_arrays::{
    ArrayError, ArrayHolder, ArrayHolders, ArrayId, ArrayMachines, ArrayOperation, LossRetries, MadeArray,
    MadeFrom, MakeOrder, PlacedArray, Restoring, UnfinishedArray,
};
use std::cell::RefCell;
use std::rc::Rc;

/// A client.
pub(super) struct ArrayClient {
    pub(super) world: Rc<RefCell<ArrayWorld>>,
    pub(super) index: usize,
    pub(super) setting: ClientSetting,
    pub(super) arrays: ClientArrays,
    /// What machines have made of the array of the call, after the loss of another.
    unfinished: Option<UnfinishedArray>,
    named: u64,
    has_freed: bool,
    /// Connections that were lost during restores of the call.
    lost_in_restores: u64,
}

/// The outcome of one operation.
pub(super) type CallOutcome<T> = Result<T, ArrayError<String>>;

impl ArrayClient {
    pub(super) fn new(world: Rc<RefCell<ArrayWorld>>, index: usize, setting: ClientSetting) -> Self {
        let arrays = ClientArrays::default();
        Self {
            world,
            index,
            setting,
            arrays,
            unfinished: None,
            named: 0,
            has_freed: false,
            lost_in_restores: 0,
        }
    }

    /// Runs all calls, and frees all arrays.
    pub(super) async fn run(mut self) {
        for _ in 0..self.setting.calls {
            let call = self.draw();
            self.call(call).await;
            turn().await;
        }
        for id in self.arrays.ids() {
            self.call(ArrayCall::Free(id)).await;
        }
    }

    fn draw(&mut self) -> ArrayCall {
        let (setting, world) = (&self.setting, &mut *self.world.borrow_mut());
        let mut draw =
            CallDraw { setting, client: self.index, arrays: &self.arrays, world, named: &mut self.named };
        draw.call()
    }

    pub(super) fn struck(&self) -> StruckClient {
        self.world.borrow().struck[self.index]
    }

    /// Runs a call, and judges its result.
    async fn call(&mut self, call: ArrayCall) {
        let (before, arrays) = (self.struck(), self.arrays.ids());
        self.lost_in_restores = 0;
        let text = call.text();
        self.tell(format!("{text} ..."));
        let result = self.until_done(&call).await;
        self.free_unfinished().await;
        let world = &mut *self.world.borrow_mut();
        let ending = if result.is_ok() { &mut world.seen.succeeded } else { &mut world.seen.failed };
        *ending += 1;
        world.note("call", self.index as u64, u64::from(result.is_ok()));
        let after = world.struck[self.index];
        let index = self.index + 1;
        world.tell(|| match &result {
            Ok(()) => format!("client {index}: {text} is done"),
            Err(failure) => format!("client {index}: {text} has failed: {failure:?}"),
        });
        let is_new = matches!(call, ArrayCall::Put(..) | ArrayCall::Make(..)) && result.is_ok();
        let is_freed = matches!(call, ArrayCall::Free(_));
        let expected = arrays.len() + usize::from(is_new) - usize::from(is_freed);
        let now = self.arrays.ids();
        assert!(now.len() == expected, "violation: {} arrays after {text}, instead of {expected}", now.len());
        assert!(is_freed || now.starts_with(&arrays), "violation: {text} has changed the list of arrays");
        let Err(failure) = result else { return };
        world.seen.gave_up += u64::from(matches!(failure, CallFailure::GaveUp(_)));
        world.seen.wrong_found += u64::from(matches!(failure, CallFailure::Error(ArrayError::Wrong(_))));
        let failed = FailedCall {
            call: &call,
            before,
            after,
            lost_in_restores: self.lost_in_restores,
            has_freed: self.has_freed,
        };
        check_cause(&failed, &failure);
    }

    /// Frees what was made of an array that the call has given up.
    async fn free_unfinished(&mut self) {
        let Some(unfinished) = self.unfinished.take() else { return };
        let (mut machines, holders) = self.open();
        for (connection, numbers) in unfinished.numbers() {
            if let Some(machine) = holders.with_connection(connection) {
                machines.free(machine, &numbers).await;
            }
        }
        machines.close().await;
        self.check();
    }

    fn tell(&self, text: String) {
        let index = self.index + 1;
        self.world.borrow_mut().tell(|| format!("client {index}: {text}"));
    }

    /// Runs a call; if a part was lost, restores all arrays and runs it again.
    async fn until_done(&mut self, call: &ArrayCall) -> Result<(), CallFailure> {
        let mut retries = LossRetries::default();
        loop {
            match self.once(call).await {
                Ok(()) => return Ok(()),
                Err(ArrayError::PartLost(why)) => {
                    assert!(self.struck().losses > 0, "violation: {why}, but no machine was lost");
                    self.tell(format!("{why}; restoring"));
                    retries.again().map_err(CallFailure::GaveUp)?;
                }
                Err(e) => return Err(CallFailure::Error(e)),
            }
            let losses = self.struck().losses;
            let restored = self.restore().await;
            self.lost_in_restores += self.struck().losses - losses;
            match restored {
                Err(ArrayError::PartLost(why)) => retries.unrestored(why),
                Err(e) => {
                    let ends_all = matches!(e, ArrayError::Wrong(_) | ArrayError::Shell(_));
                    assert!(
                        ends_all,
                        "violation: one array that is not restored keeps others from it: {e:?}"
                    );
                    return Err(CallFailure::Error(e));
                }
                Ok(()) => {}
            }
        }
    }

    /// The machines that are alive: over new connections where there are none.
    pub(super) fn open(&mut self) -> (ClientMachines, ArrayHolders) {
        let world = &mut *self.world.borrow_mut();
        let mut found = world.connections_of(self.index);
        if world.random.chance(0.3) {
            world.random.shuffle(&mut found);
        }
        let holder = |(machine, connection): &(usize, u64)| {
            let of = &world.machines[*machine];
            let left_bytes = world.left_bytes(*machine);
            let (name, gflops, may_link) = (of.name.clone(), of.gflops, of.may_link);
            ArrayHolder { name, connection: *connection, gflops, left_bytes, may_link }
        };
        let holders = ArrayHolders::new(found.iter().map(holder).collect());
        let connections = found.into_iter().map(|(_, connection)| connection).collect();
        let machines =
            ClientMachines::new(self.world.clone(), self.index, connections, self.setting.verifies);
        (machines, holders)
    }

    /// Restores all arrays.
    async fn restore(&mut self) -> CallOutcome<()> {
        self.world.borrow_mut().seen.again.restores += 1;
        let mut restoring = Restoring::all(&self.arrays);
        while let Some(id) = restoring.next_array() {
            let had_lost = self.has_lost(id);
            let (mut machines, mut holders) = self.open();
            let relays = self.setting.relays;
            let mut operation =
                ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
            let restored = operation.restore(id, relays).await;
            machines.close().await;
            if restored.is_ok() {
                self.check_restored(id, &holders.connections());
            }
            self.count_restored(id, had_lost, &restored);
            self.check();
            restoring.restored(restored, &holders)?;
        }
        restoring.end()
    }

    /// An array that was restored has parts only at machines that were there.
    fn check_restored(&self, id: ArrayId, connections: &[u64]) {
        let Ok(array) = self.arrays.get::<String>(id) else { return };
        let all_there = array.numbers().keys().all(|connection| connections.contains(connection));
        assert!(all_there, "violation: {} has parts at lost machines after it was restored", array.name);
    }

    fn has_lost(&self, id: ArrayId) -> bool {
        let world = self.world.borrow();
        let is_gone = |connection: &u64| !world.stores.contains_key(connection);
        self.arrays.get::<String>(id).is_ok_and(|array| array.numbers().keys().any(is_gone))
    }

    fn count_restored(&self, id: ArrayId, had_lost: bool, restored: &CallOutcome<()>) {
        let is_made = self.arrays.get::<String>(id).is_ok_and(PlacedArray::is_made);
        let seen = &mut self.world.borrow_mut().seen;
        match restored {
            Ok(()) if had_lost && is_made => seen.again.made_again += 1,
            Ok(()) if had_lost => seen.again.put_again += 1,
            Err(ArrayError::PartLost(why)) if why.contains("was changed") => seen.again.stale_found += 1,
            _ => {}
        }
    }

    pub(super) fn check(&self) {
        check_rules((&self.arrays, self.unfinished.as_ref()), self.index, &self.world.borrow());
    }

    /// Runs a call once.
    async fn once(&mut self, call: &ArrayCall) -> CallOutcome<()> {
        match call {
            ArrayCall::Put(matrix, wish) => self.put(matrix, *wish).await,
            ArrayCall::Make(made, wish) => self.make(made, *wish).await,
            ArrayCall::Fetch(id) => self.fetch(*id).await,
            ArrayCall::Reduce(reduction, subject) => self.reduce(*reduction, subject).await,
            ArrayCall::Product(a, b) => self.product([a, b]),
            ArrayCall::Free(id) => {
                let (mut machines, mut holders) = self.open();
                let mut operation = ArrayOperation {
                    arrays: &mut self.arrays,
                    machines: &mut machines,
                    holders: &mut holders,
                };
                operation.free(*id).await;
                machines.close().await;
                self.has_freed = true;
                self.check();
                Ok(())
            }
        }
    }

    async fn put(&mut self, matrix: &ArrayMatrix, wish: PlacementWish) -> CallOutcome<()> {
        let (mut machines, mut holders) = self.open();
        let count = holders.connections().len();
        let placement = wish.placement(count, &mut self.world.borrow_mut());
        let mut operation =
            ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
        let put = operation.put(matrix.clone(), placement.as_ref()).await;
        machines.close().await;
        self.check();
        put.map(drop)
    }

    async fn make(&mut self, made: &MadeFrom<ArrayMatrix>, wish: PlacementWish) -> CallOutcome<()> {
        let (mut machines, mut holders) = self.open();
        let count = holders.connections().len();
        let placement = wish.placement(count, &mut self.world.borrow_mut());
        self.named += 1;
        let order = MakeOrder {
            name: &format!("R{}", self.named),
            subject: made.clone(),
            placement: placement.as_ref(),
            relays: self.setting.relays,
        };
        let mut operation =
            ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
        let was_begun = self.unfinished.is_some();
        let result = operation.make(order, &mut self.unfinished).await;
        self.world.borrow_mut().seen.spreads += machines.puts;
        machines.close().await;
        if let Ok(MadeArray { lines_recomputed, .. }) = result {
            assert!(
                lines_recomputed.is_some() == self.setting.verifies,
                "violation: an array was not checked"
            );
            self.world.borrow_mut().seen.again.made_further += u64::from(was_begun);
        }
        self.check();
        result.map(drop)
    }

    async fn fetch(&mut self, id: ArrayId) -> CallOutcome<()> {
        let array = self.arrays.get::<String>(id)?;
        let output = ArrayOutput::new(array.layout.shape, array.layout.dtype);
        let (mut machines, mut holders) = self.open();
        let mut operation =
            ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
        let got = operation.fetch(id, output).await;
        machines.close().await;
        self.check();
        let array = self.arrays.get::<String>(id)?;
        if matches!(got, Err(ArrayError::Wrong(_))) {
            let world = self.world.borrow();
            assert!(world.struck[self.index].corrupted > 0, "violation: {} is called corrupted", array.name);
        }
        let elements = got?.into_elements();
        assert!(elements == array.kept.value, "violation: {} was fetched with wrong elements", array.name);
        Ok(())
    }
}
