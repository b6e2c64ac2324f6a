//! Functions between two ends: gap, latency, bandwidth, two-way.
//!
//! Invariants: end 0 measures the time; a window is sent back to back, and its acknowledgement is one frame without a
//! body. The time of bandwidth includes the acknowledgement, that of gap does not.

use super::end::{MeshEnd, MeshSenders, MessageChunk};
use super::function::Function;
use bramble_link::LinkError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkRun {
    pub(crate) function: Function,
    pub(crate) bytes: usize,
    pub(crate) ends: usize,
    /// Repetitions of the message, window or operation.
    pub(crate) repeats: u32,
}

/// Runs this end's part; returns the time of one message, and the message received last.
pub(crate) async fn perform(
    end: &mut MeshEnd,
    run: LinkRun,
    source: &Arc<Vec<u8>>,
) -> Result<(Duration, Vec<MessageChunk>), LinkError> {
    let (leads, other) = (end.rank == 0, 1 - end.rank);
    let window = run.function.window(run.bytes);
    let mut last = Vec::new();
    let began = Instant::now();
    let mut held = Duration::ZERO;
    for _ in 0..run.repeats {
        match run.function {
            Function::Latency if leads => {
                end.out.message(other, source, 0..run.bytes).await?;
                take(end, other, run.bytes, &mut last).await?;
            }
            Function::Latency => {
                take(end, other, run.bytes, &mut last).await?;
                end.out.message(other, source, 0..run.bytes).await?;
            }
            Function::TwoWay => {
                let MeshEnd { out, into, pool, .. } = end;
                let sending = give(out, other, source, run.bytes, window);
                let receiving = async {
                    for _ in 0..window {
                        pool.put_back(last.drain(..));
                        into.message(other, run.bytes, &mut last).await?;
                    }
                    Ok(())
                };
                tokio::try_join!(sending, receiving)?;
            }
            _ if leads => {
                let from = Instant::now();
                give(&mut end.out, other, source, run.bytes, window).await?;
                held += from.elapsed();
                end.into.signal(other).await?;
            }
            _ => {
                for _ in 0..window {
                    take(end, other, run.bytes, &mut last).await?;
                }
                end.out.signal(other, Vec::new()).await?;
            }
        }
    }
    let all = if run.function == Function::Gap { held } else { began.elapsed() };
    let each_way = if matches!(run.function, Function::Latency | Function::TwoWay) { 2.0 } else { 1.0 };
    let messages = each_way * f64::from(run.repeats) * window as f64;
    Ok((all.div_f64(messages.max(1.0)), last))
}

/// Receives a message into `last`, replacing the previous one.
async fn take(
    end: &mut MeshEnd,
    from: usize,
    bytes: usize,
    last: &mut Vec<MessageChunk>,
) -> Result<(), LinkError> {
    end.pool.put_back(last.drain(..));
    end.into.message(from, bytes, last).await
}

async fn give(
    out: &mut MeshSenders,
    to: usize,
    source: &Arc<Vec<u8>>,
    bytes: usize,
    window: usize,
) -> Result<(), LinkError> {
    for _ in 0..window {
        out.message(to, source, 0..bytes).await?;
    }
    Ok(())
}
