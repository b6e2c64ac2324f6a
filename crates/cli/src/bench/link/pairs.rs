//! What two ends do: gap, latency, bandwidth, two-way.
//!
//! Invariants: the clock is end 0's; a window is sent back to back, and its acknowledgement is one frame without a body. Gap
//! leaves the acknowledgement out, bandwidth does not.

use super::end::{End, Out, Piece};
use super::function::Function;
use bramble_link::LinkError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What both ends know of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) function: Function,
    pub(crate) bytes: usize,
    pub(crate) ends: usize,
    /// Times that it is done; of a window, windows.
    pub(crate) repeats: u32,
}

/// Does it at this end; gives the time of one message, and the last that came.
pub(crate) async fn perform(
    end: &mut End,
    run: Run,
    source: &Arc<Vec<u8>>,
) -> Result<(Duration, Vec<Piece>), LinkError> {
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
                let End { out, into, pool, .. } = end;
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

/// A message into `last`, in place of the one before.
async fn take(end: &mut End, from: usize, bytes: usize, last: &mut Vec<Piece>) -> Result<(), LinkError> {
    end.pool.put_back(last.drain(..));
    end.into.message(from, bytes, last).await
}

async fn give(
    out: &mut Out,
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
