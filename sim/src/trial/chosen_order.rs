//! A product whose events happen in an order that the caller chooses: any order that links allow.
//!
//! Place in the flow: the other clock of a trial. Nothing takes modelled time; `choices` select the event that happens next,
//! and after the last choice events take turns, so that every run ends. Tests of the state machines drive it event by event,
//! and may put events of their own between.
//!
//! Invariants: those of a trial, after every event. Between two events a millisecond passes; no machine is ever silent.
//!
//! Deliberately absent: faults at a time. Machines die and join, and links break, after a number of events.

use super::check::check_pairs;
use super::inspection::InspectionState;
use super::journal_writer::{TileKey, rect_of};
use super::lanes::LaneItem;
use super::order_setting::{OrderSetting, peers};
use super::trial_data::at;
use super::{RareEvents, Scenario, Trial, TrialEvent, operands_of};
use crate::clock::EventQueue;
use crate::fault::{FaultKind, FaultSite, Faults, LinkEnd};
use crate::random::mixed;
use bramble_matrix::Rect;
use bramble_plan::{PlanOptions, Problem};
use bramble_schedule::primary::{InspectionVerdict, PeerInfo, Primary, PrimaryEvent};
use bramble_wire::message::{Kind, StoreHead};
use std::time::Duration;

/// What happens after which number of events; the last first.
struct Due {
    deaths: Vec<(u64, u32)>,
    joins: Vec<(u64, usize)>,
}

/// A trial in a chosen order: see the head of the file.
pub struct ChosenOrder {
    trial: Trial,
    scenario: Scenario,
    due: Due,
    breaks: bool,
    slow: Vec<u32>,
    /// How often an event of each peer was chosen.
    chosen: Vec<u64>,
    /// Workers without a link to the primary, which may not have noticed yet.
    severed: Vec<usize>,
    /// When time last passed at all ends.
    ticked: Duration,
}

/// Time between two ticks, if events happen; otherwise they are ticks.
const TICK: Duration = Duration::from_millis(100);
/// Ticks without another event after which none will come.
const IDLE_TICKS_MAX: u32 = 400;
/// One of this many events is followed by a link between workers that breaks, if links may.
const BREAK_ONE_IN: u64 = 97;

impl ChosenOrder {
    /// A product that has not begun; `None` if it does not fit the machines.
    pub fn new(p: &Problem, setting: &OrderSetting, wish: &PlanOptions) -> Option<Self> {
        let scenario = setting.scenario(p, wish)?;
        check_pairs(&scenario);
        let peers = peers(&scenario);
        let infos = peers.iter().map(|(_, info)| info.clone()).collect();
        let primary = Primary::new(scenario.plan.clone(), operands_of(&scenario), infos);
        let primary = if setting.recovers { primary.recovering() } else { primary };
        Some(Self::of(scenario, setting, (&peers, primary)))
    }

    fn of(
        scenario: Scenario,
        setting: &OrderSetting,
        (peers, primary): (&[(usize, PeerInfo)], Primary),
    ) -> Self {
        let mut deaths = setting.deaths.clone();
        deaths.sort_unstable_by(|a, b| b.cmp(a));
        let first = 1 + setting.memories.len();
        let mut joins: Vec<(u64, usize)> =
            setting.joins.iter().enumerate().map(|(number, (event, _))| (*event, first + number)).collect();
        joins.sort_unstable_by(|a, b| b.cmp(a));
        let faults: Faults = Faults(joins.iter().map(|(_, machine)| joining(*machine)).collect());
        let trial =
            Trial::assembled(&scenario, (peers, primary.inspected()), faults.0, EventQueue::unordered());
        let chosen = vec![0; trial.nodes.len()];
        let (breaks, slow) = (setting.breaks, setting.slow.clone());
        Self {
            trial,
            scenario,
            due: Due { deaths, joins },
            breaks,
            slow,
            chosen,
            severed: Vec::new(),
            ticked: Duration::ZERO,
        }
    }

    /// A resumed run on the workers of that setting, which knows the complete tiles of this one except every n-th. `None` if
    /// these workers cannot do the product.
    pub fn resumed(
        &self,
        p: &Problem,
        setting: &OrderSetting,
        wish: &PlanOptions,
        nth: usize,
    ) -> Option<Result<Self, String>> {
        // The plan stays; the machines are those of the setting.
        let own = setting.scenario(p, wish)?;
        let peers = peers(&own);
        let scenario = Scenario { plan: self.trial.primary.plan().clone(), ..own };
        let known: Vec<TileKey> = self
            .complete_tiles()
            .into_iter()
            .enumerate()
            .filter(|(number, _)| nth == 0 || number % nth != 0)
            .map(|(_, tile)| tile)
            .collect();
        let is_there = |region: usize, tile: u64| known.contains(&(region, tile));
        let infos = peers.iter().map(|(_, info)| info.clone()).collect();
        let primary = Primary::resumed(scenario.plan.clone(), operands_of(&scenario), infos, &is_there);
        Some(primary.map(|primary| {
            let mut next = Self::of(scenario, setting, (&peers, primary));
            next.trial.take_over(known.iter().copied(), self.trial.shell.c.clone());
            next.trial.primary.validate_tiles();
            next
        }))
    }

    /// Runs from the start to the end, and checks the end.
    pub fn run(&mut self, choices: &[u32]) {
        self.inject_unsuspected(PrimaryEvent::Start);
        self.finish(choices);
    }

    /// Runs on to the end, and checks the end.
    pub fn finish(&mut self, choices: &[u32]) {
        self.go_on(choices);
        let scenario = self.scenario.clone();
        self.trial.end(&scenario);
    }

    /// Runs on until C is accepted or the product has failed.
    pub fn go_on(&mut self, choices: &[u32]) {
        self.run_while(choices, |_| true);
    }

    /// Runs on until all tiles are complete and the inspection of C begins.
    pub fn run_to_inspection(&mut self, choices: &[u32]) {
        self.inject_unsuspected(PrimaryEvent::Start);
        self.run_while(choices, |order| order.trial.inspection.task.is_none());
    }

    /// Runs from the start until this many events have happened.
    pub fn run_for(&mut self, events: u64, choices: &[u32]) {
        self.inject_unsuspected(PrimaryEvent::Start);
        self.run_while(choices, |order| order.events() < events);
    }

    /// Lets up to `events` more events happen.
    pub fn run_more(&mut self, events: usize) {
        for turn in 0..events {
            if self.trial.event_queue.is_empty() || self.trial.is_over() {
                return;
            }
            self.next_event(turn);
        }
    }

    fn run_while(&mut self, choices: &[u32], goes_on: impl Fn(&Self) -> bool) {
        let mut idle = 0;
        let mut turn = 0;
        while goes_on(self) && !self.trial.is_over() {
            self.happen_if_due();
            let now = self.trial.event_queue.now().duration();
            if self.trial.event_queue.is_empty() || now - self.ticked >= TICK {
                idle = if self.trial.event_queue.is_empty() { idle + 1 } else { 0 };
                assert!(idle < IDLE_TICKS_MAX, "nothing can happen any more, and C is not there");
                self.tick();
            } else {
                let choice = choices.get(turn).map_or(turn, |choice| *choice as usize);
                self.next_event(choice);
                turn += 1;
            }
        }
    }

    /// Time passes, without any silence.
    fn tick(&mut self) {
        self.trial.event_queue.pass(TICK.as_secs_f64());
        self.ticked = self.trial.event_queue.now().duration();
        for peer in 0..self.trial.members.count {
            if self.trial.nodes[peer].machine.lives
                && !self.trial.shell.sessions[peer].link.is_gone
                && !self.trial.is_over()
            {
                self.trial.dispatch(PrimaryEvent::Alive { peer });
            }
        }
        if !self.trial.is_over() {
            self.trial.dispatch(PrimaryEvent::Tick);
        }
    }

    /// One of the events happens. Those of a slow peer are mostly passed over.
    fn next_event(&mut self, choice: usize) {
        let events = self.trial.event_queue.unordered_events();
        let (mut at, count) = (choice % events.len(), events.len());
        for _ in 0..count {
            let Some(peer) = self.peer_of(&self.trial.event_queue.unordered_events()[at]) else { break };
            self.chosen[peer] += 1;
            let one_in = u64::from(self.slow.get(peer).copied().unwrap_or(1).max(1));
            if (mixed(self.chosen[peer]) >> 32).is_multiple_of(one_in) {
                break;
            }
            at = (at + 1) % count;
        }
        let event = self.trial.event_queue.choose(at);
        self.trial.record.events += 1;
        self.trial.remember(&event);
        self.trial.happen(event);
        let number = mixed(choice as u64);
        if self.breaks && number.is_multiple_of(BREAK_ONE_IN) {
            self.break_a_link(number / BREAK_ONE_IN);
        }
    }

    fn peer_of(&self, event: &TrialEvent) -> Option<usize> {
        match event {
            TrialEvent::Link(lane, _) => self.trial.sender(*lane).or_else(|| self.trial.receiver(*lane)),
            TrialEvent::Done(peer, _) => Some(*peer),
            _ => None,
        }
    }

    /// A link between two workers breaks.
    fn break_a_link(&mut self, number: u64) {
        let count = self.trial.members.count as u64;
        let (one, other) = ((number % count) as usize, (number / count % count) as usize);
        let may = |peer: usize| {
            self.trial.nodes[peer].machine.lives && !self.trial.nodes[peer].machine.shares_memory
        };
        if one != other && may(one) && may(other) && !self.trial.is_over() {
            let end = |peer: usize| LinkEnd::Worker(self.trial.members.machines[peer]);
            self.trial.sever(FaultSite::Link { from: end(one), to: end(other), both: true });
        }
    }

    /// Workers die and join.
    fn happen_if_due(&mut self) {
        let now = self.events();
        while let Some((_, machine)) = self.due.joins.pop_if(|(event, _)| *event <= now) {
            self.trial.join(FaultSite::Worker(machine));
        }
        while let Some((_, how)) = self.due.deaths.pop_if(|(event, _)| *event <= now) {
            let living: Vec<usize> = (0..self.trial.members.count)
                .filter(|peer| self.trial.nodes[*peer].machine.lives && !self.severed.contains(peer))
                .filter(|peer| !self.trial.shell.sessions[*peer].link.is_gone)
                .collect();
            let may: Vec<usize> = living
                .iter()
                .copied()
                .filter(|peer| !self.trial.nodes[*peer].machine.shares_memory)
                .collect();
            if !may.is_empty() && living.len() > 1 && !self.trial.is_over() {
                self.kill(may[how as usize % may.len()], how >> 8);
            }
        }
    }

    /// A worker dies. Frames in flight arrive, the leaving one partly, and its neighbours notice, all in any order.
    fn kill(&mut self, peer: usize, how: u32) {
        let site = FaultSite::Worker(self.trial.members.machines[peer]);
        self.trial.checks.machine_died(peer, self.trial.process.clock.passed());
        match how % 4 {
            0 | 1 => self.trial.stop(peer, None),
            2 => self.trial.stop(peer, Some("there is no memory for a matrix".into())),
            _ => {
                self.severed.push(peer);
                self.trial.sever(site);
            }
        }
    }

    /// Passes an event of the test's own to the primary. Any machine may be lost by it.
    pub fn inject(&mut self, event: PrimaryEvent) {
        (0..self.trial.members.count).for_each(|peer| self.trial.checks.may_look_lost(peer));
        self.inject_unsuspected(event);
    }

    fn inject_unsuspected(&mut self, event: PrimaryEvent) {
        self.trial.dispatch(event);
    }

    /// Time passes without any messages.
    pub fn wait(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / TICK.as_millis() {
            self.trial.event_queue.pass(TICK.as_secs_f64());
            self.inject(PrimaryEvent::Tick);
        }
    }

    /// From now on the results of a worker are wrong.
    pub fn lies(&mut self, peer: usize) {
        self.trial.nodes[peer].lies += 1;
    }

    /// The state machine.
    pub fn primary(&self) -> &Primary {
        &self.trial.primary
    }

    /// The state machine, to which a test passes events without carrying out their actions.
    pub fn primary_mut(&mut self) -> &mut Primary {
        &mut self.trial.primary
    }

    /// Why the product has failed, if it has.
    pub fn failed(&self) -> Option<&str> {
        self.trial.shell.failed.as_deref()
    }

    /// Whether C has exactly the bits that the plan gives.
    pub fn is_right(&self) -> bool {
        self.wrong_tiles().is_empty()
    }

    /// The tiles of C with a wrong element, by region and number.
    pub fn wrong_tiles(&self) -> Vec<TileKey> {
        let (c, expected) = (&self.trial.shell.c, &self.trial.model.expected);
        let is_wrong = |rect: Rect| {
            super::trial_data::places(rect, self.trial.model.data.p.n)
                .any(|place| c[place].to_bits() != expected[place].to_bits())
        };
        self.tiles().into_iter().filter(|tile| is_wrong(rect_of(self.primary().plan(), *tile))).collect()
    }

    /// All tiles of the plan.
    pub fn tiles(&self) -> Vec<TileKey> {
        let regions = self.primary().plan().regions.iter().enumerate();
        regions.flat_map(|(region, is)| (0..is.tiles()).map(move |tile| (region, tile))).collect()
    }

    /// The tiles that are complete, including those of an earlier run.
    pub fn complete_tiles(&self) -> Vec<TileKey> {
        let first = |tile: &TileKey| {
            let rect = rect_of(self.primary().plan(), *tile);
            at(rect.rows.start, rect.cols.start, self.trial.model.data.p.n)
        };
        self.tiles().into_iter().filter(|tile| self.trial.shell.committed[first(tile)]).collect()
    }

    /// The number of events so far.
    pub fn events(&self) -> u64 {
        self.trial.record.events
    }

    /// Counts of rare events so far.
    pub fn seen(&self) -> RareEvents {
        self.trial.record.seen
    }

    /// Elements of operands, and unfinished sums, that the primary has sent.
    pub fn sent(&self) -> (u64, u64) {
        (self.trial.work.operand_elements, self.trial.work.sums_sent)
    }

    /// The result of the inspection, and the tiles that were recomputed.
    pub fn inspected(&self) -> (Option<&InspectionVerdict>, Vec<TileKey>) {
        let inspection: &InspectionState = &self.trial.inspection;
        (inspection.verdict.as_ref(), inspection.recomputed().collect())
    }

    /// A tile that was announced to the first worker.
    pub fn announced_tile(&self) -> Option<u32> {
        let frames = self.trial.lanes[self.trial.out(0)].items().filter_map(|item| match item {
            LaneItem::Frame(frame) if frame.kind == Kind::Store => StoreHead::decode(&frame.head).ok(),
            _ => None,
        });
        frames.flat_map(|head| head.matrices).find(|matrix| matrix.uses == 0).map(|matrix| matrix.id)
    }
}

/// A machine that joins: lanes are made for it.
fn joining(machine: usize) -> crate::fault::SimFault {
    crate::fault::SimFault {
        kind: FaultKind::Join,
        site: FaultSite::Worker(machine),
        from: Duration::ZERO,
        to: None,
    }
}
