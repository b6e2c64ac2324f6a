//! Products without multiplications: C = βC.
//!
//! Place in the flow: `one_product` ends here where there are no elements, no depth, or α is 0. No machine is asked.

use super::{Finished, Request};
use crate::account::{CheckReport, PlanReport, Report, TeamChanges};
use crate::inspector::Inspector;
use bramble_kernel::factors;
use bramble_matrix::{DType, Element, Matrix, Output, Rect, Span};
use bramble_plan::Problem;
use bramble_record::log::Phase;
use bramble_sessions::PrimaryError;
use std::time::Instant;

/// Products without multiplications (no elements, no depth, or α = 0): C = βC.
pub(super) async fn without_product(
    mut request: Request,
    problem: &Problem,
) -> Result<Finished, PrimaryError> {
    let began = Instant::now();
    let mut log = request.log.take();
    log.iter_mut().for_each(|log| log.phase(Phase::Computing));
    let inspector = Inspector::of(&request, 0, Vec::new(), None);
    if let Some(old) = request.old_c.as_ref().filter(|_| problem.reads_c) {
        match problem.dtype {
            DType::F32 => scale::<f32>(old, request.beta, &request.output)?,
            DType::F64 => scale::<f64>(old, request.beta, &request.output)?,
            DType::I32 => scale::<i32>(old, request.beta, &request.output)?,
            DType::I64 => scale::<i64>(old, request.beta, &request.output)?,
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let sealed = request.output.seal()?;
    log.iter_mut().for_each(|log| log.phase(Phase::Verifying));
    let verify = inspector.verify(sealed.matrix()?, 0).await?;
    inspector.unchanged("when C was complete", !verify.verdict.passed)?;
    let plan = PlanReport {
        strategy: "none".to_owned(),
        sums: bramble_plan::Sums::Merged,
        grid: [0; 3],
        peak_gflops: 0.0,
        bound: bramble_plan::Bound { seconds: 0.0, by: bramble_plan::Binding::Compute },
        predicted: bramble_plan::Prediction::default(),
        alone: true,
        sentence: "alone: there is nothing to multiply".to_owned(),
        instead: None,
    };
    let report = Report {
        problem: *problem,
        plan,
        seconds,
        opening_seconds: began.saturating_duration_since(request.began).as_secs_f64(),
        partial_sum_bytes_max: 0,
        bytes_sent: 0,
        bytes_received: 0,
        io: None,
        machines: Vec::new(),
        changes: TeamChanges::default(),
        check: CheckReport { verify, wrong: Vec::new(), suspect: None, effort: request.check.effort },
        relay: None,
    };
    Ok(Finished { sealed, report, log, journal: None })
}

/// C = βC, row by row.
fn scale<T: Element>(old: &Matrix, beta: f64, output: &Output) -> Result<(), PrimaryError> {
    let shape = old.shape();
    for row in 0..shape.rows {
        let rect = Rect::new(Span::new(row, row + 1), Span::new(0, shape.cols));
        let mut bytes = vec![0; shape.cols as usize * size_of::<T>()];
        old.read_block(rect, &mut bytes)?;
        let mut lent = output.lease(rect);
        let mut view = lent.view_mut::<T>();
        for (j, element) in bytes.chunks_exact(size_of::<T>()).enumerate() {
            *view.at_mut(0, j) = factors::times(bytemuck::pod_read_unaligned::<T>(element), beta);
        }
    }
    Ok(())
}
