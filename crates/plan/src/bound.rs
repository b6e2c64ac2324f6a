//! Lower bounds that no run can beat (docs/cost-model.md): the physical limits of the machines, and the bytes that
//! must be moved.
//!
//! Place in the flow: computed with every plan; reports compare runs with it.
//!
//! Invariant: a lower bound for every possible plan of the product on the participating machines, including plans
//! that Bramble does not consider: other relaying, other shares, other orders. So it omits every cost that some
//! plan could avoid.

use crate::cost::primary_rate;
use crate::{Machine, Member, Problem};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::float::{powf, powi, sqrt};

/// The resource that sets the lower bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Operations over the summed peak of the cores.
    Compute,
    /// A, B and C moved once through the memory of the only machine that computes, at the highest measured rate.
    Memory,
    /// Operands once over the primary's link.
    Egress,
    /// C once over the primary's link.
    Ingress,
    /// The worker with that number: its link feeds its memory too slowly for its speed.
    Worker(usize),
}

impl Binding {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Egress => "egress",
            Self::Ingress => "ingress",
            Self::Worker(_) => "worker link",
        }
    }

    /// The meaning in words; `machines` are those that the plan was made for, the primary first.
    pub fn sentence(self, machines: &[Machine]) -> String {
        match self {
            Self::Compute => "the peak speed of all cores together".to_owned(),
            Self::Memory => {
                "the memory of the machine that computes, through which A, B and C pass".to_owned()
            }
            Self::Egress => "the primary's link, which sends the operands".to_owned(),
            Self::Ingress => "the primary's link, which receives C".to_owned(),
            Self::Worker(at) => match machines.get(at) {
                Some(m) => format!("the link to {}, for a memory of {} bytes", m.name, m.memory_bytes),
                None => "a worker's link".to_owned(),
            },
        }
    }
}

/// A lower bound: no run on these machines can be faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Seconds.
    pub seconds: f64,
    /// The term that sets it.
    pub by: Binding,
}

/// A worker's part of the product in T seconds is at most `part_per_s` T (its peak) and `fed_per_s` T + `fed` (its
/// link).
struct Worker {
    machine: usize,
    part_per_s: f64,
    fed_per_s: f64,
    fed: f64,
}

impl Worker {
    fn part(&self, seconds: f64) -> f64 {
        (self.part_per_s * seconds).min(self.fed_per_s * seconds + self.fed)
    }
}

/// The limits of all members together.
struct Limits {
    workers: Vec<Worker>,
    /// The part of the product that the primary's own threads compute in a second.
    own_per_s: f64,
    mn: f64,
    mk: f64,
    kn: f64,
    /// Words per second, in each direction.
    words_per_s: f64,
    sends_a: bool,
    sends_b: bool,
    /// Words of the old C that have to be sent, whichever machine computes which tile.
    old_c: f64,
}

/// The limits that are applied.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Compute,
    Egress,
    Ingress,
    Workers,
    All,
}

/// The least time in which the members could compute all of the product. With x the part of it that workers
/// compute, and |multiply-adds| ≤ √(|A| |B| |C|) of the elements that they access (Loomis and Whitney), they need
/// at least 2 x k √(mn) words of A and B, and x² mn of C have to be returned.
pub(crate) fn bound(problem: &Problem, machines: &[Machine], members: &[Member], levels: u32) -> Bound {
    let limits = Limits::new(problem, machines, members, levels);
    if problem.flops() <= 0.0 || members.is_empty() {
        return Bound { seconds: 0.0, by: Binding::Compute };
    }
    let seconds = limits.least(Look::All);
    let memory_s = memory_s(problem, machines, members);
    if memory_s > seconds {
        return Bound { seconds: memory_s, by: Binding::Memory };
    }
    let alone = [
        (limits.least(Look::Compute), Look::Compute),
        (limits.least(Look::Egress), Look::Egress),
        (limits.least(Look::Ingress), Look::Ingress),
        (limits.least(Look::Workers), Look::Workers),
    ];
    let (_, look) =
        alone.into_iter().fold((0.0, Look::Compute), |a, b| if b.0 > a.0 * (1.0 + 1e-9) { b } else { a });
    let by = match look {
        Look::Compute | Look::All => Binding::Compute,
        Look::Egress => Binding::Egress,
        Look::Ingress => Binding::Ingress,
        Look::Workers => limits.hungriest(seconds).map_or(Binding::Compute, Binding::Worker),
    };
    Bound { seconds, by }
}

/// If one machine computes alone: each element of A, B and C passes through its memory once.
fn memory_s(problem: &Problem, machines: &[Machine], members: &[Member]) -> f64 {
    let [only] = members else { return 0.0 };
    let bytes = problem.operand_bytes() + problem.result_bytes();
    machines[only.machine].memory_rate.map_or(0.0, |rate| bytes / rate.most_bytes_per_s.max(1.0))
}

impl Limits {
    fn new(problem: &Problem, machines: &[Machine], members: &[Member], levels: u32) -> Self {
        let e = problem.element_bytes() as f64;
        let (m, n, k) = (problem.m as f64, problem.n as f64, problem.k as f64);
        let flops = problem.flops() * powi(7.0 / 8.0, levels);
        let part_per_s = |machine: &Machine| machine.peak_gflops.max(machine.gflops) * 1e9 / flops;
        // With Strassen's method the worker makes the sums of panels itself, so this bound on the words it needs
        // does not hold.
        let bounded = problem.a_source.is_sent() && problem.b_source.is_sent() && levels == 0;
        let worker = |member: &Member| {
            let machine = &machines[member.machine];
            let link = machine.link?;
            let words = machine.memory_bytes as f64 / e;
            let (fed_per_s, fed) = match bounded {
                true => (link.bytes_per_s / e * sqrt(words) / (m * n * k), powf(words, 1.5) / (m * n * k)),
                false => (0.0, f64::INFINITY),
            };
            Some(Worker { machine: member.machine, part_per_s: part_per_s(machine), fed_per_s, fed })
        };
        let own = members.iter().map(|m| &machines[m.machine]).filter(|m| m.link.is_none());
        let own_per_s: f64 = own.map(part_per_s).sum();
        Self {
            workers: members.iter().filter_map(worker).collect(),
            own_per_s,
            mn: m * n,
            mk: m * k,
            kn: k * n,
            words_per_s: primary_rate(machines, members) / e,
            sends_a: problem.a_source.is_sent(),
            sends_b: problem.b_source.is_sent(),
            old_c: if problem.reads_c && own_per_s <= 0.0 { m * n } else { 0.0 },
        }
    }

    /// The largest part of the product for which the workers can be sent operands.
    fn egress(&self, seconds: f64) -> f64 {
        let words = self.words_per_s * seconds - self.old_c;
        if words < 0.0 {
            return 0.0;
        }
        match (self.sends_a, self.sends_b) {
            (false, false) => f64::INFINITY,
            (true, false) => sqrt(words / self.mk),
            (false, true) => sqrt(words / self.kn),
            (true, true) => {
                // a + b words with a b ≥ x² mk kn, and neither larger than its matrix.
                let (less, more) = (self.mk.min(self.kn), self.mk.max(self.kn));
                if words <= 2.0 * less {
                    words / (2.0 * sqrt(less * more))
                } else {
                    sqrt((words - less) / more)
                }
            }
        }
    }

    /// The largest part of the product that can be computed in that time under the given limits.
    fn part(&self, seconds: f64, look: Look) -> f64 {
        let is = |one: Look| look == one || look == Look::All;
        let fed = is(Look::Workers);
        let each = |w: &Worker| if fed { w.part(seconds) } else { w.part_per_s * seconds };
        let mut workers: f64 = self.workers.iter().map(each).sum();
        if is(Look::Egress) {
            workers = workers.min(self.egress(seconds));
        }
        if is(Look::Ingress) {
            workers = workers.min(sqrt(self.words_per_s * seconds / self.mn));
        }
        workers + self.own_per_s * seconds
    }

    /// The least time for the whole product; by bisection from below, so never too long.
    fn least(&self, look: Look) -> f64 {
        let compute = 1.0 / (self.own_per_s + self.workers.iter().map(|w| w.part_per_s).sum::<f64>());
        if look == Look::Compute || !compute.is_finite() || compute <= 0.0 {
            return if compute.is_finite() { compute } else { 0.0 };
        }
        let (mut low, mut high) = (compute, compute);
        for _ in 0..200 {
            if self.part(high, look) >= 1.0 {
                break;
            }
            (low, high) = (high, high * 2.0);
        }
        for _ in 0..40 {
            let middle = low + (high - low) / 2.0;
            if self.part(middle, look) >= 1.0 { high = middle } else { low = middle }
        }
        low
    }

    /// The worker that loses most of its speed to its link.
    fn hungriest(&self, seconds: f64) -> Option<usize> {
        let lost = |w: &Worker| w.part_per_s * seconds - w.part(seconds);
        self.workers.iter().max_by(|a, b| lost(a).total_cmp(&lost(b))).map(|w| w.machine)
    }
}

/// Words that each of p equal machines moves for its part of m × n × k, with memory for S words: 2mnk/(p√S) + S, or
/// with memory for the face of a cube, S ≥ (mnk/p)^(2/3), 3 (mnk/p)^(2/3) (Kwasniewski et al., *Red-blue pebbling
/// revisited*, SC 2019, theorem 2). If a side is shorter than that of the cube, the cube is not possible: see
/// `words_flat`.
pub fn words_each(m: f64, n: f64, k: f64, machines: f64, memory_words: f64) -> f64 {
    let part = m * n * k / machines;
    let face = powf(part, 2.0 / 3.0).min(memory_words);
    if face <= 0.0 { f64::INFINITY } else { 2.0 * part / sqrt(face) + face }
}

/// The same with plenty of memory for any shape: with m ≥ n ≥ k the sides in order, nk + (mn + mk)/p words where
/// p ≤ m/n, 2 (mnk²/p)^(1/2) + mn/p where p ≤ mn/k², else 3 (mnk/p)^(2/3) (Al Daas, Ballard, Grigori, Kumar, Rouse, *Tight
/// memory-independent parallel matrix multiplication communication lower bounds*, SPAA 2022, theorem 3).
pub fn words_flat(m: f64, n: f64, k: f64, machines: f64) -> f64 {
    let mut sides = [m, n, k];
    sides.sort_by(f64::total_cmp);
    let ([k, n, m], p) = (sides, machines);
    if p * n <= m {
        n * k + (m * n + m * k) / p
    } else if p * k * k <= m * n {
        2.0 * sqrt(m * n * k * k / p) + m * n / p
    } else {
        3.0 * powf(m * n * k / p, 2.0 / 3.0)
    }
}
