//! Carries out what operations on arrays decide, for one client, over simulated machines.
//!
//! Place in the flow: the simulator's `ArrayMachines`, in the place of the primary's shell. `client.rs` opens it for each
//! operation.
//!
//! Invariants: one thing happens at a time: a machine takes a message, the client sends or hears one, a machine serves another.
//! After each, the other clients and the faults have their turn. A lost machine is reported once.
//!
//! Deliberately absent: the check (`check.rs`).

use super::check::{ArrayCheck, KeptValue, expected};
use super::matrix::{ArrayMatrix, ArrayOutput, digest_of, viewed, write};
use super::talk::MachineTalk;
use super::world::{ArrayWorld, FromMachine, ToMachine};
use bramble_arrays::{
    ArrayError, ArrayHolders, ArrayId, ArrayMachines, ArraysOf, IntroducedHolders, MachineTask, MadeFrom,
    PlacedArray, RectToGet, SumsOfParts, TaskEnd, TaskOutcome,
};
use bramble_matrix::{DType, Digest128, MatrixInfo, Rect, Shape, Span};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// Chance that the sources of a made array are far.
const FAR: f64 = 0.15;
/// Chance that a client has no memory for a matrix.
const NO_MEMORY: f64 = 0.005;
/// Numbers by which machines know each other begin here.
const PEERS_FROM: u32 = 100;

/// The machines of one operation.
pub(super) struct ClientMachines {
    pub(super) world: Rc<RefCell<ArrayWorld>>,
    pub(super) client: usize,
    /// The connection of each machine, by its number in the operation.
    pub(super) connections: Vec<u64>,
    /// Whether arrays are checked.
    pub(super) verifies: bool,
    /// Machines that were reported as lost.
    reported: BTreeSet<usize>,
    was_introduced: bool,
    /// Matrices that were put as a whole.
    pub(super) puts: u64,
}

/// Lets the others have their turn.
pub(super) async fn turn() {
    let mut was_polled = false;
    poll_fn(|_| if std::mem::replace(&mut was_polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Something that can happen next.
enum NextEvent {
    Send(usize),
    Take(u64),
    Hear(u64),
    Serve(u64),
    Step(u64),
}

impl ClientMachines {
    /// The machines behind these connections.
    pub(super) fn new(
        world: Rc<RefCell<ArrayWorld>>,
        client: usize,
        connections: Vec<u64>,
        verifies: bool,
    ) -> Self {
        let (reported, was_introduced, puts) = (BTreeSet::new(), false, 0);
        Self { world, client, connections, verifies, reported, was_introduced, puts }
    }

    fn is_there(&self, machine: usize) -> bool {
        self.world.borrow().stores.contains_key(&self.connections[machine])
    }

    /// The machines that were lost and are not reported yet.
    fn newly_lost(&mut self) -> Vec<usize> {
        let all = 0..self.connections.len();
        let lost: Vec<usize> = all.filter(|at| !self.is_there(*at) && !self.reported.contains(at)).collect();
        self.reported.extend(&lost);
        lost
    }

    fn send(&self, machine: usize, message: ToMachine) {
        if let Some(store) = self.world.borrow_mut().stores.get_mut(&self.connections[machine]) {
            store.towards.push_back(message);
        }
    }

    /// What can happen between the client and its machines.
    fn events(&self, talks: &BTreeMap<u64, MachineTalk>) -> Vec<NextEvent> {
        let world = self.world.borrow();
        let mut events = Vec::new();
        for connection in &self.connections {
            let Some(store) = world.stores.get(connection) else { continue };
            let machine = talks.get(connection).filter(|talk| talk.may_send()).map(|talk| talk.machine);
            events.extend(machine.map(NextEvent::Send));
            events.extend((!store.towards.is_empty()).then_some(NextEvent::Take(*connection)));
            events.extend((!store.answers.is_empty()).then_some(NextEvent::Hear(*connection)));
            events.extend(store.running.is_some().then_some(NextEvent::Step(*connection)));
            events.extend((!store.waiting.is_empty()).then_some(NextEvent::Serve(*connection)));
        }
        events
    }

    /// One of these things happens; the end of a conversation, with its connection.
    fn happen(&self, event: NextEvent, talks: &mut BTreeMap<u64, MachineTalk>) -> Option<(u64, TaskOutcome)> {
        let world = &mut *self.world.borrow_mut();
        match event {
            NextEvent::Send(machine) => {
                let connection = self.connections[machine];
                world.note("send", connection, 0);
                let talk = talks.get_mut(&connection)?;
                talk.send(world).map(|outcome| (connection, outcome))
            }
            NextEvent::Take(connection) => {
                world.take_message(connection);
                None
            }
            NextEvent::Serve(connection) => {
                world.serve_fetch(connection);
                None
            }
            NextEvent::Step(connection) => {
                world.end_step(connection);
                None
            }
            NextEvent::Hear(connection) => {
                world.note("hear", connection, 0);
                let answer = world.stores.get_mut(&connection)?.answers.pop_front()?;
                let talk = talks.get_mut(&connection)?;
                talk.hear(answer).map(|outcome| (connection, outcome))
            }
        }
    }

    /// A conversation has ended: what is left at the machine is freed.
    fn over(&self, talk: MachineTalk) {
        let world = &mut *self.world.borrow_mut();
        if let Some(store) = world.stores.get_mut(&talk.connection) {
            store.is_asked = false;
            store.towards.extend(talk.left().into_iter().map(ToMachine::Free));
        }
    }

    /// Lets one thing happen that needs no decision of the client; whether there was one.
    fn take_something(&self) -> bool {
        let events = self.events(&BTreeMap::new());
        if events.is_empty() {
            return false;
        }
        let at = self.world.borrow_mut().random.index(events.len());
        let event = events.into_iter().nth(at);
        event.into_iter().for_each(|event| drop(self.happen(event, &mut BTreeMap::new())));
        true
    }

    /// Ends the sessions: the machines take all messages, and the links between them end.
    pub(super) async fn close(self) {
        let own: BTreeSet<u64> = self.connections.iter().copied().collect();
        while self.take_something() {
            turn().await;
        }
        let world = &mut *self.world.borrow_mut();
        world.links.retain(|(one, other)| !own.contains(one) && !own.contains(other));
        world.stores.iter_mut().filter(|(at, _)| own.contains(at)).for_each(|(_, store)| store.peers.clear());
    }
}

impl ArrayMachines for ClientMachines {
    type Matrix = ArrayMatrix;
    type Kept = KeptValue;
    type Output = ArrayOutput;
    type Check = ArrayCheck;
    type Error = String;

    async fn at_once(
        &mut self,
        tasks: Vec<(usize, MachineTask<ArrayMatrix>)>,
    ) -> Result<Vec<TaskEnd>, String> {
        let (mut talks, mut ended) = (BTreeMap::new(), BTreeMap::new());
        for (machine, task) in tasks {
            // As in the primary: nothing is heard of a machine that was reported as lost.
            if self.reported.contains(&machine) {
                continue;
            }
            let connection = self.connections[machine];
            let world = &mut *self.world.borrow_mut();
            let talk = MachineTalk::new((machine, connection), task, world);
            assert!(talks.insert(connection, talk).is_none(), "violation: a machine has two tasks");
            if let Some(store) = world.stores.get_mut(&connection) {
                store.is_asked = true;
            }
        }
        loop {
            for machine in self.newly_lost() {
                talks.remove(&self.connections[machine]);
                ended.insert(machine, None);
            }
            if talks.is_empty() {
                break;
            }
            let events = self.events(&talks);
            assert!(!events.is_empty(), "violation: the conversations stand still");
            let at = self.world.borrow_mut().random.index(events.len());
            let event = events.into_iter().nth(at);
            let end = event.and_then(|event| self.happen(event, &mut talks));
            if let Some((connection, outcome)) = end
                && let Some(talk) = talks.remove(&connection)
            {
                ended.insert(talk.machine, Some(outcome));
                self.over(talk);
            }
            turn().await;
        }
        Ok(ended.into_iter().map(|(machine, outcome)| TaskEnd { machine, outcome }).collect())
    }

    async fn free(&mut self, machine: usize, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.send(machine, ToMachine::Free(*number)));
        turn().await;
    }

    async fn digest(&mut self, matrix: &ArrayMatrix, rect: Rect) -> Result<Option<Digest128>, String> {
        turn().await;
        Ok((!matrix.is_generated()).then(|| digest_of(rect.shape(), &matrix.read(rect))))
    }

    async fn introduce(&mut self, pairs: &[(usize, usize)]) -> Result<IntroducedHolders, String> {
        assert!(!self.was_introduced, "violation: machines are introduced twice in a session");
        self.was_introduced = true;
        turn().await;
        let mut met = IntroducedHolders { lost: self.newly_lost(), ..IntroducedHolders::default() };
        let peer = |machine: usize| PEERS_FROM + u32::try_from(machine).unwrap_or(0);
        met.peers = (0..self.connections.len()).map(|machine| (machine, peer(machine))).collect();
        let world = &mut *self.world.borrow_mut();
        for (one, other) in pairs {
            assert!(one < other, "violation: a pair in the wrong order");
            let ends = [self.connections[*one], self.connections[*other]];
            let [Some(first), Some(second)] =
                ends.map(|end| world.stores.get(&end).map(|store| store.machine))
            else {
                continue;
            };
            if world.apart.contains(&(first.min(second), first.max(second))) {
                continue;
            }
            met.pairs.extend([(*one, *other), (*other, *one)]);
            world.links.extend([(ends[0], ends[1]), (ends[1], ends[0])]);
            for (at, other) in [(0, *other), (1, *one)] {
                let to = self.connections[other];
                if let Some(store) = world.stores.get_mut(&ends[at]) {
                    store.peers.insert(peer(other), to);
                }
            }
            world.seen.links += 1;
        }
        let linked = met.pairs.len() as u64;
        world.note("introduce", pairs.len() as u64, linked);
        Ok(met)
    }

    fn output(&mut self, shape: Shape, dtype: DType) -> Result<ArrayOutput, String> {
        let world = &mut *self.world.borrow_mut();
        if world.random.chance(NO_MEMORY) {
            world.struck[self.client].shell_errors += 1;
            return Err("there is no memory for a matrix".to_owned());
        }
        Ok(ArrayOutput::new(shape, dtype))
    }

    async fn get(
        &mut self,
        wanted: Vec<(usize, RectToGet)>,
        output: ArrayOutput,
    ) -> Result<(ArrayOutput, Vec<usize>), String> {
        let mut output = output;
        let mut missing: BTreeMap<u64, VecDeque<RectToGet>> = BTreeMap::new();
        for (machine, rect) in wanted {
            self.send(machine, ToMachine::Get(rect.number, rect.rect));
            missing.entry(self.connections[machine]).or_default().push_back(rect);
        }
        let mut lost = Vec::new();
        loop {
            lost.extend(self.newly_lost());
            missing.retain(|connection, rects| {
                !rects.is_empty() && self.world.borrow().stores.contains_key(connection)
            });
            if missing.is_empty() {
                break;
            }
            let answered: Vec<u64> = {
                let world = self.world.borrow();
                let has_answer =
                    |at: &&u64| world.stores.get(at).is_some_and(|store| !store.answers.is_empty());
                missing.keys().filter(has_answer).copied().collect()
            };
            if let Some(connection) = answered.first() {
                self.hear_elements(*connection, &mut missing, &mut output);
            } else {
                assert!(self.take_something(), "violation: a fetch stands still");
            }
            turn().await;
        }
        Ok((output, lost))
    }

    async fn digest_in(&mut self, output: &mut ArrayOutput, rect: Rect) -> Result<Digest128, String> {
        let part = viewed(output.shape.rect(), &output.elements, rect, false);
        Ok(digest_of(rect.shape(), &part))
    }

    fn matrix(&mut self, output: ArrayOutput) -> Result<ArrayMatrix, String> {
        Ok(ArrayMatrix::here("fetched", output.shape, output.dtype, output.elements))
    }

    fn change(&self, matrix: &ArrayMatrix, _: bool) -> Option<String> {
        (matrix.changes() > 0).then(|| "its elements were changed".to_owned())
    }

    fn kept_of_put(&mut self, matrix: &ArrayMatrix) -> KeptValue {
        self.puts += 1;
        KeptValue { value: matrix.whole(), is_far: false }
    }

    fn kept_of_made(
        &mut self,
        made: &MadeFrom<ArrayMatrix>,
        _matrices: &[ArrayMatrix],
        arrays: &ArraysOf<Self>,
    ) -> Result<KeptValue, ArrayError<String>> {
        let is_far = self.world.borrow_mut().random.chance(FAR);
        let value = expected(made, arrays);
        Ok(KeptValue { value, is_far })
    }

    fn is_far(&self, array: &PlacedArray<ArrayMatrix, KeptValue>) -> bool {
        array.kept.is_far
    }

    fn begin_check(
        &mut self,
        made: &MadeFrom<ArrayMatrix>,
        _matrices: &[ArrayMatrix],
        arrays: &ArraysOf<Self>,
    ) -> Result<Option<ArrayCheck>, ArrayError<String>> {
        Ok(self.verifies.then(|| ArrayCheck { value: expected(made, arrays) }))
    }

    fn begin_check_again(&mut self, array: &PlacedArray<ArrayMatrix, KeptValue>) -> Option<ArrayCheck> {
        self.verifies.then(|| ArrayCheck { value: array.kept.value.clone() })
    }

    async fn check(
        &mut self,
        check: ArrayCheck,
        sums: SumsOfParts,
        id: ArrayId,
        arrays: &mut ArraysOf<Self>,
        holders: &mut ArrayHolders,
    ) -> Result<u64, ArrayError<String>> {
        turn().await;
        let lines = check.compare(&sums, arrays.get(id)?, holders, self)?;
        if let Some(array) = arrays.get_mut(id) {
            array.kept.value = check.value;
        }
        Ok(lines)
    }
}

impl ClientMachines {
    /// The client hears an answer with elements.
    fn hear_elements(
        &self,
        connection: u64,
        missing: &mut BTreeMap<u64, VecDeque<RectToGet>>,
        output: &mut ArrayOutput,
    ) {
        let world = &mut *self.world.borrow_mut();
        world.note("elements", connection, 0);
        let answer = world.stores.get_mut(&connection).and_then(|store| store.answers.pop_front());
        // Answers to earlier conversations are not heard.
        let Some(FromMachine::Elements(number, rect, elements)) = answer else { return };
        let Some(wanted) = missing.get_mut(&connection).and_then(VecDeque::pop_front) else { return };
        assert!(wanted.number == number && wanted.rect == rect, "violation: elements of another part");
        let place = Rect::new(
            Span::new(wanted.to.0, wanted.to.0 + rect.rows.len()),
            Span::new(wanted.to.1, wanted.to.1 + rect.cols.len()),
        );
        write(output.shape.rect(), &mut output.elements, place, &elements);
    }
}
