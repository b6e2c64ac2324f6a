//! What machines say of themselves and how their links measure, for those who want to plan or look, not compute.
//!
//! Place in the flow: the opening of a product's sessions, then goodbye instead of a plan.
//!
//! Invariant: whoever is asked here is asked and measured as a product would ask and measure them.

use crate::PrimaryError;
use crate::measure::measure;
use crate::opening::{Opening, Session, dismiss, even_speeds, one_kernel, open};
use crate::product::{End, Ends};
use bramble_matrix::DType;
use bramble_plan::Machine;
use bramble_schedule::message::Wants;
use std::collections::BTreeMap;

/// What machines are asked for.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Element type whose speed counts.
    pub dtype: DType,
    /// Operations of the product that they would share: few are not worth a long measurement.
    pub flops: f64,
    /// The most bytes of matrices that it could use at one machine.
    pub memory_bytes: u64,
    /// Most bytes that any one worker would be sent before it frees some.
    pub credits: Option<u64>,
    /// Kernel by name, or `auto`.
    pub kernel: String,
    /// Whether all have to give the same bits.
    pub one_kernel: bool,
    /// What the primary calls itself.
    pub name: String,
    /// Source of session numbers, which workers see.
    pub session_seed: u32,
}

/// A machine that answered.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// The machine as planning sees it.
    pub machine: Machine,
    /// Kernel that it would use.
    pub kernel: String,
    /// `thread` or `tcp`.
    pub link: &'static str,
    /// The cipher of that link, where it is encrypted.
    pub encryption: Option<&'static str>,
}

/// Opens sessions with this machine's own threads and then with all others, measures them, and says goodbye. Has to run
/// inside a `tokio::task::LocalSet`. The others come in the order of the ends, but one whose
/// link broke while it was measured comes last.
pub async fn survey(
    survey: &Survey,
    ends: Ends,
) -> Result<(Surveyed, Vec<Result<Surveyed, PrimaryError>>), PrimaryError> {
    let opening = survey.opening();
    let (first, alike) = (survey.session_seed | 1, ends.alike);
    let local = open(ends.local, &opening, first).await?;
    let opened = open_all(ends.workers, &opening, first).await;
    // Whoever did not answer is not measured.
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
    // Whoever falls silent meanwhile is no longer among the sessions.
    let (nic_bytes_per_s, silent) = measure(&mut sessions).await?;
    let mut own = surveyed(&local, None, false);
    own.machine.nic_bytes_per_s = nic_bytes_per_s;
    let mut answers = sessions.iter().map(|session| surveyed(session, survey.credits, alike));
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

/// Waits until all of them have welcomed this process: what a product waits for before it looks at links. Gives what says
/// goodbye to them. The first that does not answer is the error.
pub async fn welcomed(
    survey: &Survey,
    ends: Vec<End>,
) -> Result<impl Future<Output = ()> + use<>, PrimaryError> {
    let opened = open_all(ends, &survey.opening(), survey.session_seed | 1).await;
    Ok(dismiss(opened.into_iter().collect::<Result<_, _>>()?))
}

/// Opens sessions with all of them at the same time; in their order.
async fn open_all(ends: Vec<End>, opening: &Opening, first: u32) -> Vec<Result<Session, PrimaryError>> {
    let mut tasks = Vec::new();
    let mut session = first;
    for end in ends {
        session = session.wrapping_add(2);
        let opening = opening.clone();
        tasks.push(tokio::task::spawn_local(async move { open(end, &opening, session).await }));
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

fn surveyed(session: &Session, credits: Option<u64>, shares_cores: bool) -> Surveyed {
    Surveyed {
        machine: session.machine(credits, shares_cores),
        kernel: session.welcome.kernel.clone(),
        link: session.link.name,
        encryption: session.link.cipher,
    }
}
