//! Surveys machines and links for commands that plan or inspect instead of computing.
//!
//! Place in the flow: the opening of a product's sessions, then goodbye instead of a plan.
//!
//! Invariant: machines are asked and measured exactly as for a product.

use crate::PrimaryError;
use crate::measure::measure;
use crate::opening::{Connection, Opening, Session, dismiss, even_speeds, one_kernel, open};
use crate::{MachineLink, MachineLinks};
use bramble_matrix::DType;
use bramble_plan::Machine;
use bramble_wire::message::Wants;
use std::collections::BTreeMap;

/// Parameters of a survey.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Element type whose speed counts.
    pub dtype: DType,
    /// Operations of the product in question: a small product is not worth a long measurement.
    pub flops: f64,
    /// Most bytes of matrices that the product could use at one machine.
    pub memory_bytes: u64,
    /// Most bytes that the primary would have outstanding at each worker.
    pub credits: Option<u64>,
    /// Kernel by name, or `auto`.
    pub kernel: String,
    /// Whether all machines must give the same bits.
    pub one_kernel: bool,
    /// Name by which the primary introduces itself.
    pub name: String,
    /// Source of session numbers, which workers see.
    pub session_seed: u32,
}

/// A machine that answered.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// The machine as the planner sees it.
    pub machine: Machine,
    /// Kernel that it would use.
    pub kernel: String,
    /// `thread` or `tcp`.
    pub link: &'static str,
    /// The cipher of that link, where it is encrypted.
    pub encryption: Option<&'static str>,
}

/// Opens sessions with this machine's own threads and then with all others, measures them, and says goodbye. Must run
/// inside a `tokio::task::LocalSet`. The results are in the order of `ends`, but those of workers whose link broke during the
/// measurement come last.
pub async fn survey(
    survey: &Survey,
    ends: MachineLinks,
) -> Result<(Surveyed, Vec<Result<Surveyed, PrimaryError>>), PrimaryError> {
    let opening = survey.opening();
    let (first, alike) = (survey.session_seed | 1, ends.alike);
    let local = open(Connection::new(ends.local, 0), &opening, first).await?;
    let opened = open_all(ends.workers, &opening, first).await;
    // Workers that did not answer are not measured.
    let mut failed = BTreeMap::new();
    let mut sessions = Vec::new();
    for (place, session) in opened.into_iter().enumerate() {
        match session {
            Ok(session) => sessions.push(session),
            Err(e) => drop(failed.insert(place, e)),
        }
    }
    if survey.one_kernel {
        one_kernel(&local, &sessions)?;
    }
    // Sessions that fall silent meanwhile are removed.
    let (nic_bytes_per_s, silent) = measure(&mut sessions, None, |_| true).await?;
    let mut own = Surveyed::of(&local, None, false);
    own.machine.nic_bytes_per_s = nic_bytes_per_s;
    let mut answers = sessions.iter().map(|session| Surveyed::of(session, survey.credits, alike));
    let count = sessions.len() + failed.len();
    let mut others: Vec<Result<Surveyed, PrimaryError>> = (0..count)
        .filter_map(|place| failed.remove(&place).map(Err).or_else(|| answers.next().map(Ok)))
        .collect();
    drop(answers);
    others.extend(silent.into_iter().map(Err));
    if alike {
        even_speeds(others.iter_mut().flatten().map(|s| &mut s.machine).collect());
    }
    sessions.push(local);
    dismiss(sessions).await;
    Ok((own, others))
}

/// Waits until all workers have welcomed this process; links are not measured. Returns a future that says goodbye to them. The
/// first worker that does not answer is the error.
pub async fn wait_for_welcomes(
    survey: &Survey,
    ends: Vec<MachineLink>,
) -> Result<impl Future<Output = ()> + use<>, PrimaryError> {
    let opened = open_all(ends, &survey.opening(), survey.session_seed | 1).await;
    Ok(dismiss(opened.into_iter().collect::<Result<_, _>>()?))
}

/// Opens all sessions concurrently; returns them in order.
async fn open_all(
    ends: Vec<MachineLink>,
    opening: &Opening,
    first: u32,
) -> Vec<Result<Session, PrimaryError>> {
    let mut tasks = Vec::new();
    let mut session = first;
    for end in ends {
        session = session.wrapping_add(2);
        let opening = opening.clone();
        tasks.push(tokio::task::spawn_local(async move {
            open(Connection::new(end, 0), &opening, session).await
        }));
    }
    let mut opened = Vec::new();
    for task in tasks {
        let ended = task.await;
        opened.push(ended.unwrap_or_else(|e| Err(PrimaryError::Failed(format!("opening a session: {e}")))));
    }
    opened
}

impl Survey {
    fn opening(&self) -> Opening {
        Opening {
            dtype: self.dtype,
            alpha: 1.0,
            beta: 0.0,
            flops: self.flops,
            memory_bytes: self.memory_bytes.max(1),
            kernel: self.kernel.clone(),
            name: self.name.clone(),
            wants: Wants::default(),
        }
    }
}

impl Surveyed {
    /// The machine of a session. `credits` limits the memory that a plan may use there; `shares_cores`: it runs on the primary's
    /// own cores.
    pub fn of(session: &Session, credits: Option<u64>, shares_cores: bool) -> Self {
        Self {
            machine: session.machine(credits, shares_cores),
            kernel: session.welcome.kernel.clone(),
            link: session.link.name,
            encryption: session.link.cipher,
        }
    }
}
