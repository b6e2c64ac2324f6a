//! The result of a simulated factorisation in modelled time.
//!
//! Place in the flow: the last value of `simulate_lu`; `bramble sim lu` prints it.

/// What an idle thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LuWait {
    /// The next panel is one of its own machine: it is being factored, or lacks an update.
    OwnPanel,
    /// The next panel is arriving.
    Link,
    /// The next panel is still with other machines.
    Others,
    /// Nothing: its machine has no further panel to wait for, or has finished.
    End,
}

/// How the threads of a machine spend their time in the elimination: seconds, all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LuThreadTime {
    /// Updates.
    pub update_s: f64,
    /// Factoring panels.
    pub panel_s: f64,
    /// Waiting while the next panel, which is its own, is factored or updated.
    pub own_panel_s: f64,
    /// Waiting for the rest of a panel that is arriving.
    pub link_s: f64,
    /// Waiting for a panel that is still with others.
    pub others_s: f64,
    /// After the last panel.
    pub end_s: f64,
}

impl LuThreadTime {
    pub(super) fn add(&mut self, cause: LuWait, seconds: f64) {
        match cause {
            LuWait::OwnPanel => self.own_panel_s += seconds,
            LuWait::Link => self.link_s += seconds,
            LuWait::Others => self.others_s += seconds,
            LuWait::End => self.end_s += seconds,
        }
    }

    /// All of it.
    pub fn sum_s(&self) -> f64 {
        self.update_s + self.panel_s + self.own_panel_s + self.link_s + self.others_s + self.end_s
    }

    /// The part of it in which the threads compute.
    pub fn busy(&self) -> f64 {
        (self.update_s + self.panel_s) / self.sum_s().max(f64::MIN_POSITIVE)
    }

    /// The largest wait; `None` if the threads compute for at least 95 % of the time.
    pub fn longest_wait(&self) -> Option<LuWait> {
        let waits = [
            (self.own_panel_s, LuWait::OwnPanel),
            (self.link_s, LuWait::Link),
            (self.others_s, LuWait::Others),
            (self.end_s, LuWait::End),
        ];
        let longest = waits.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        longest.filter(|_| self.busy() < 0.95).map(|(_, cause)| cause)
    }
}

/// A machine in a simulated factorisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LuSimMachine {
    /// Its number among the machines of the plan.
    pub machine: usize,
    /// Its columns.
    pub columns: usize,
    /// Its threads' time.
    pub time: LuThreadTime,
    /// Bytes of panels from the machine before.
    pub bytes_in: u64,
    /// Bytes of panels to the next machine.
    pub bytes_out: u64,
}

/// A simulated factorisation.
#[derive(Clone, Debug, PartialEq)]
pub struct LuSimReport {
    /// Seconds from the first task to the solution.
    pub seconds: f64,
    /// The part of them in which all columns are eliminated: simulated.
    pub elimination_seconds: f64,
    /// The part of the back-substitution: as the model says.
    pub back_seconds: f64,
    /// The machines in the order of the ring.
    pub machines: Vec<LuSimMachine>,
    /// Events: the cost of the simulation.
    pub events: u64,
}
