//! Coordinates the ends of a run: end 0 sends an order, all ends prepare, end 0 sends the start signal, and all
//! report results.
//!
//! Place in the flow: end 0 is in the process that the user started (`Leader::lead`); the other ends follow it
//! (`serve`), over the links that are measured.
//!
//! Invariants: memory is allocated and touched before the clock starts; received data are checked if the order says
//! so; the time of a collective function is that of its slowest end; every end stops when end 0 closes its links.
//!
//! Deliberately absent: rounds and turns, and time limits (`measure` has both).

use super::collective::{self, SendBuffer};
use super::end::{MeshEnd, MessageChunk};
use super::function::Function;
use super::pairs::{self, LinkRun};
use bramble_link::LinkError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an order: function, whether to check, ends, repetitions, message size.
const ORDER_BYTES: usize = 16;
/// Bytes of an answer: whether the received data are right, and the time in nanoseconds.
const ANSWER_BYTES: usize = 9;
/// Period of the test data, in numbers or bytes; coprime to frame and block sizes.
const PERIOD: usize = 251;
/// Bytes that are checked at each end of a long chunk.
const CHECKED_BYTES: usize = 4096;

/// An end's test data, reused while function, size and ends stay the same.
#[derive(Default)]
struct Prepared(Option<(Function, usize, usize, SendBuffer)>);

impl Prepared {
    /// The test data that this end sends.
    fn source(&mut self, end: &MeshEnd, run: LinkRun) -> SendBuffer {
        let key = (run.function, run.bytes, run.ends);
        if let Some((function, bytes, ends, source)) = &self.0
            && (*function, *bytes, *ends) == key
        {
            return source.clone();
        }
        // Frees the old data first: both may not fit in memory.
        self.0 = None;
        end.pool.clear();
        let source = Arc::new(given(end.rank, run));
        self.0 = Some((key.0, key.1, key.2, source.clone()));
        source
    }
}

/// End 0, which leads the others.
pub(crate) struct Leader {
    end: MeshEnd,
    prepared: Prepared,
}

impl Leader {
    pub(crate) fn new(end: MeshEnd) -> Self {
        Self { end, prepared: Prepared::default() }
    }

    /// Runs a function on the first `run.ends` ends, and checks the received data if `checks`; returns the time of
    /// one message or operation.
    pub(crate) async fn lead(&mut self, run: LinkRun, checks: bool) -> Result<Duration, LinkError> {
        let Self { end, prepared } = self;
        for other in 1..run.ends {
            end.out.signal(other, encode(run, checks)).await?;
        }
        let source = prepared.source(end, run);
        for other in 1..run.ends {
            end.into.signal(other).await?;
        }
        for other in 1..run.ends {
            end.out.signal(other, Vec::new()).await?;
        }
        let (mut longest, is_right) = perform(end, run, &source, checks).await?;
        let mut wrong = (!is_right).then_some(0);
        for other in 1..run.ends {
            let answer = end.into.signal(other).await?;
            let Some((is_right, time)) = answered(&answer) else {
                return Err(LinkError::Foreign(format!("end {other} sent an invalid answer")));
            };
            if !run.function.is_of_pairs() {
                longest = longest.max(time);
            }
            wrong = wrong.or_else(|| (!is_right).then_some(other));
        }
        match wrong {
            Some(at) => Err(LinkError::Refused(format!("end {at} received wrong data"))),
            None => Ok(longest),
        }
    }

    /// Ends all other ends.
    pub(crate) async fn close(&mut self) {
        self.end.out.close().await;
    }

    /// Frees the test data.
    pub(crate) fn clear(&mut self) {
        self.prepared = Prepared::default();
        self.end.pool.clear();
    }
}

/// Follows the orders of end 0 until it closes its links.
pub(crate) async fn serve(mut end: MeshEnd) -> Result<(), LinkError> {
    let mut prepared = Prepared::default();
    loop {
        let order = match end.into.signal(0).await {
            Err(LinkError::Closed) => return Ok(()),
            other => other?,
        };
        let Some((run, checks)) = decode(&order).filter(|(run, _)| end.rank < run.ends) else {
            return Err(LinkError::Foreign("end 0 sent an invalid order".to_owned()));
        };
        let source = prepared.source(&end, run);
        end.out.signal(0, Vec::new()).await?;
        end.into.signal(0).await?;
        let (time, is_right) = perform(&mut end, run, &source, checks).await?;
        end.out.signal(0, answer(is_right, time)).await?;
    }
}

/// Runs this end's part; returns the time of one message or operation, and whether the data received last are right.
async fn perform(
    end: &mut MeshEnd,
    run: LinkRun,
    source: &SendBuffer,
    checks: bool,
) -> Result<(Duration, bool), LinkError> {
    let (time, last) = if run.function.is_of_pairs() {
        pairs::perform(end, run, source).await?
    } else {
        operations(end, run, source).await?
    };
    let is_right = !checks || is_right(end.rank, run, &last);
    end.pool.put_back(last);
    Ok((time, is_right))
}

/// Runs a collective function repeatedly, each time after a barrier whose time does not count; returns the mean time
/// and the last result.
async fn operations(
    end: &mut MeshEnd,
    run: LinkRun,
    source: &SendBuffer,
) -> Result<(Duration, Vec<MessageChunk>), LinkError> {
    let (mut spent, mut last) = (Duration::ZERO, Vec::new());
    for _ in 0..run.repeats {
        end.pool.put_back(last);
        end.barrier(run.ends).await?;
        let began = Instant::now();
        last = match run.function {
            Function::Broadcast => collective::broadcast(end, run.ends, source).await?,
            Function::Reduce => collective::reduce(end, run.ends, source).await?,
            Function::AllToAll => collective::all_to_all(end, run.ends, source).await?,
            _ if run.function.algorithm(run.bytes) == "ring" => {
                collective::ring(end, run.ends, source).await?
            }
            _ => collective::doubling(end, run.ends, source).await?,
        };
        spent += began.elapsed();
    }
    Ok((spent / run.repeats.max(1), last))
}

/// Test data of an end: for sums, small whole numbers, whose sums are exact; else bytes that depend on rank and
/// position.
fn given(rank: usize, run: LinkRun) -> Vec<u8> {
    let bytes = run.function.source_bytes(run.bytes, run.ends);
    let period: Vec<u8> = match run.function {
        Function::Reduce | Function::AllReduce => {
            (0..PERIOD).flat_map(|at| number(rank, at).to_le_bytes()).collect()
        }
        _ => (0..PERIOD).map(|at| byte(rank, at)).collect(),
    };
    let mut given = period.repeat(bytes / period.len());
    given.extend_from_slice(&period[..bytes - given.len()]);
    given
}

fn number(rank: usize, at: usize) -> f64 {
    (at % PERIOD + 3 * rank) as f64
}

fn byte(rank: usize, at: usize) -> u8 {
    ((at % PERIOD) ^ (rank * 17)) as u8
}

/// Whether `got` is the expected result at an end of rank `rank`.
fn is_right(rank: usize, run: LinkRun, got: &[MessageChunk]) -> bool {
    let LinkRun { function, bytes, ends, .. } = run;
    let others: usize = (0..ends).sum();
    let expected = |at: usize| match function {
        Function::Reduce | Function::AllReduce => {
            let sum = (at / 8 % PERIOD * ends + 3 * others) as f64;
            sum.to_le_bytes()[at % 8]
        }
        Function::Broadcast => byte(0, at),
        Function::AllToAll => byte(at / bytes, rank * bytes + at % bytes),
        _ => byte(1 - rank, at),
    };
    let expects = match function {
        Function::Gap | Function::Bandwidth if rank == 0 => 0,
        Function::Reduce if rank > 0 => 0,
        _ => function.source_bytes(bytes, ends),
    };
    let mut from = 0;
    let pieces_are_right = got.iter().all(|piece| {
        let (first, len) = (from, piece.bytes().len());
        from += len;
        let mut places = (0..len.min(CHECKED_BYTES)).chain(len.saturating_sub(CHECKED_BYTES)..len);
        places.all(|at| piece.bytes()[at] == expected(first + at))
    });
    pieces_are_right && from == expects
}

fn encode(run: LinkRun, checks: bool) -> Vec<u8> {
    let mut out = vec![run.function.code(), u8::from(checks)];
    out.extend(u16::try_from(run.ends).unwrap_or(u16::MAX).to_le_bytes());
    out.extend(run.repeats.to_le_bytes());
    out.extend(u64::try_from(run.bytes).unwrap_or(u64::MAX).to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<(LinkRun, bool)> {
    let bytes: &[u8; ORDER_BYTES] = bytes.try_into().ok()?;
    let [function, checks, e0, e1, r0, r1, r2, r3, size @ ..] = *bytes;
    let run = LinkRun {
        function: Function::from_code(function)?,
        bytes: usize::try_from(u64::from_le_bytes(size)).ok().filter(|bytes| *bytes > 0)?,
        ends: usize::from(u16::from_le_bytes([e0, e1])),
        repeats: u32::from_le_bytes([r0, r1, r2, r3]),
    };
    Some((run, checks != 0))
}

fn answer(is_right: bool, time: Duration) -> Vec<u8> {
    let mut out = vec![u8::from(is_right)];
    out.extend(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
    out
}

fn answered(bytes: &[u8]) -> Option<(bool, Duration)> {
    let bytes: &[u8; ANSWER_BYTES] = bytes.try_into().ok()?;
    let [is_right, time @ ..] = *bytes;
    Some((is_right != 0, Duration::from_nanos(u64::from_le_bytes(time))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;
    use crate::link::mesh::thread_ends;

    /// Leads a run among tasks.
    async fn led(run: LinkRun, checks: bool) -> Result<Duration, LinkError> {
        let mut ends = thread_ends(run.ends);
        let mut leader = Leader::new(ends.remove(0));
        let serving: Vec<_> = ends.into_iter().map(|end| tokio::task::spawn_local(serve(end))).collect();
        let time = leader.lead(run, checks).await;
        leader.close().await;
        drop(leader);
        for one in serving {
            one.await.unwrap().unwrap();
        }
        time
    }

    fn block<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, work)
    }

    #[test]
    fn every_function_is_done_and_checked() {
        block(async {
            for function in Function::ALL {
                let counts = if function.is_of_pairs() { 2..=2 } else { 2..=5 };
                for ends in counts {
                    for bytes in [8, 4000, 72 << 10, (1 << 20) + 8] {
                        let run = LinkRun { function, bytes, ends, repeats: 2 };
                        let time = led(run, true).await.unwrap();
                        assert!(time > Duration::ZERO, "{run:?}");
                    }
                }
            }
        });
    }

    #[test]
    fn wrong_data_are_detected() {
        let run = LinkRun { function: Function::AllReduce, bytes: 24, ends: 3, repeats: 1 };
        let sums = |off: f64| -> Vec<u8> {
            (0..3)
                .flat_map(|at| (number(0, at) + number(1, at) + number(2, at) + off).to_le_bytes())
                .collect()
        };
        let piece = |bytes: Vec<u8>| {
            let len = bytes.len();
            [MessageChunk::of(&Arc::new(bytes), 0..len)]
        };
        assert!(is_right(1, run, &piece(sums(0.0))));
        assert!(!is_right(1, run, &piece(sums(1.0))));
        assert!(!is_right(1, run, &[]));
        assert!(!is_right(1, run, &piece(vec![0; 23])));
        let all = LinkRun { function: Function::AllToAll, bytes: 3, ends: 2, repeats: 1 };
        let mine: Vec<u8> = (0..6).map(|at| byte(at / 3, 3 + at % 3)).collect();
        assert!(is_right(1, all, &piece(mine.clone())) && !is_right(0, all, &piece(mine)));
    }

    #[test]
    fn orders_and_answers_are_read_as_they_were_written() {
        let run = LinkRun { function: Function::TwoWay, bytes: 1 << 26, ends: 2, repeats: 70_000 };
        assert_eq!(decode(&encode(run, true)), Some((run, true)));
        assert_eq!(
            answered(&answer(false, Duration::from_micros(3))),
            Some((false, Duration::from_micros(3)))
        );
        for bad in [&[][..], &[9; 16], &[0; 16], &[0; 15]] {
            assert_eq!(decode(bad), None);
        }
        assert_eq!(answered(&[0; 8]), None);
    }
}
