//! How fast links are: each by itself, then all at once, since they leave the primary through one network card.
//!
//! Place in the flow: after the welcomes, before the plan.
//!
//! Invariants: bytes travel as those of a product do, in frames of the session, over the same cipher. Every wait has a
//! deadline that names the machine. What a shaper on the way lets through at once after a pause (a token bucket) does not
//! count: a measurement follows directly on as much that is not measured. A rate is never more than a few
//! times what was timed: where the bytes take no longer than the way there and back (an end that was asleep takes long to
//! wake for a ping that is empty), more are sent.
//!
//! Deliberately absent: the way back, which is taken to be as fast.

use crate::PrimaryError;
use crate::log::ClockSample;
use crate::opening::Session;
use bramble_link::{Body, CHUNK_BYTES_MAX, Frame, Link, NoBodies, Region, clock_ns};
use bramble_matrix::number::{nearest_f64, to_u64};
use bramble_plan::LinkRate;
use bramble_schedule::message::{Kind, Pong, encode_number};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Longest measurement of one link.
const DEADLINE: Duration = Duration::from_secs(10);
/// A link on which 64 KiB take longer than this is slow enough to be judged by them.
const QUICK: Duration = Duration::from_millis(20);
/// The first look at a link.
const FIRST_BYTES: usize = 64 << 10;
/// On a link that takes longer than this for those one look has to do.
const SLOW: Duration = Duration::from_secs(1);
/// Bodies in a row on a link that one says too little of.
const ROW: u64 = 8;
/// What all links together carry, about, when they are measured at once.
const TOGETHER: Duration = Duration::from_millis(40);
/// Links that are measured by themselves in the same moment: one, unless there are so many that turns take too long.
const FEW: usize = 16;

/// What all links carry together, bytes a second, and why some are no more.
type Measured = (Option<f64>, Vec<PrimaryError>);

/// Measures every link that moves bytes, and what all of them carry together. Whoever fails is no longer among the sessions.
pub(crate) async fn measure(sessions: &mut Vec<Session>) -> Result<Measured, PrimaryError> {
    let at_once = if sessions.len() > FEW { sessions.len() / FEW } else { 1 };
    let turns = Rc::new(Semaphore::new(at_once));
    let each = |session: Session| {
        let turns = turns.clone();
        async move {
            // The semaphore is never closed.
            let _turn = turns.acquire().await;
            by_itself(session).await
        }
    };
    let mut failed = Vec::new();
    for session in all(std::mem::take(sessions), each).await? {
        match session {
            Ok(session) => sessions.push(session),
            Err(e) => failed.push(e),
        }
    }
    let mut best: Option<f64> = None;
    for warm in [false, true, true] {
        if sessions.iter().filter(|s| s.rate.is_some()).count() < 2 {
            return Ok((None, failed));
        }
        let rate = together(sessions, &mut failed).await?;
        if warm {
            best = Some(best.map_or(rate, |best| best.max(rate)));
        }
    }
    Ok((best, failed))
}

/// Does something with all sessions at once; gives what came of it in their order.
async fn all<F, T>(sessions: Vec<Session>, each: impl Fn(Session) -> F) -> Result<Vec<T>, PrimaryError>
where
    F: Future<Output = T> + 'static,
    T: 'static,
{
    let tasks: Vec<_> = sessions.into_iter().map(|s| tokio::task::spawn_local(each(s))).collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.map_err(|e| PrimaryError::Failed(format!("measuring a link: {e}")))?);
    }
    Ok(done)
}

/// Round trip of an empty ping (best of four), then bytes a second of a large one.
async fn by_itself(mut session: Session) -> Result<Session, PrimaryError> {
    if session.link.shares_memory {
        return Ok(session);
    }
    let name = session.name.clone();
    let (rate, clock) = in_time(&name, FIRST_BYTES, rate(&mut session.link)).await?;
    Ok(Session { rate: Some(rate), clock: Some(clock), ..session })
}

/// All links at once, each with as much as it could carry in the same time: what they carry together, bytes a second.
async fn together(sessions: &mut Vec<Session>, failed: &mut Vec<PrimaryError>) -> Result<f64, PrimaryError> {
    let began = Instant::now();
    let each = |mut session: Session| async move {
        let Some(rate) = session.rate else { return (0, Ok(session)) };
        let share = rate.bytes_per_s * TOGETHER.as_secs_f64();
        let bytes = (share as usize).clamp(1 << 10, CHUNK_BYTES_MAX);
        let name = session.name.clone();
        // On a fast link one body is over at once: several, one after the other.
        let times = ((share / nearest_f64(to_u64(bytes))) as u64).clamp(1, 8);
        let pings = async {
            for nonce in 0..times {
                ping(&mut session.link, 16 + nonce, bytes).await?;
            }
            Ok(())
        };
        let ended = in_time(&name, bytes, pings).await;
        (to_u64(bytes) * times, ended.map(|()| session))
    };
    let (mut bytes, mut waited) = (0, Duration::ZERO);
    let trips = sessions.iter().filter_map(|s| s.rate).map(|r| r.round_trip_s).fold(0.0, f64::max);
    for (count, session) in all(std::mem::take(sessions), each).await? {
        bytes += count;
        waited = waited.max(began.elapsed());
        match session {
            Ok(session) => sessions.push(session),
            Err(e) => failed.push(e),
        }
    }
    Ok(nearest_f64(bytes) / (waited.as_secs_f64() - trips).max(1e-6))
}

async fn in_time<T>(
    name: &str,
    bytes: usize,
    what: impl Future<Output = Result<T, String>>,
) -> Result<T, PrimaryError> {
    let unreachable = |why: String| PrimaryError::Unreachable { name: name.to_owned(), why };
    match tokio::time::timeout(DEADLINE, what).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(why)) => Err(unreachable(why)),
        Err(_) => {
            let why = format!(
                "{} KiB take more than {} s to it; check its network",
                bytes >> 10,
                DEADLINE.as_secs()
            );
            Err(unreachable(why))
        }
    }
}

async fn rate(link: &mut Link) -> Result<(LinkRate, ClockSample), String> {
    let (mut round_trip, mut clock) = asked(link, 0, 0).await?;
    for nonce in 1..4 {
        let (trip, sample) = asked(link, nonce, 0).await?;
        (round_trip, clock) = (round_trip.min(trip), ClockSample::better(Some(clock), sample));
    }
    let mut first = ping(link, 4, FIRST_BYTES).await?;
    if first > round_trip + QUICK / 8 {
        // It may have been held up just then: a processor quota, a neighbour's burst.
        first = first.min(ping(link, 5, FIRST_BYTES).await?);
    }
    let (bytes, best) = match first.saturating_sub(round_trip) {
        over if over > SLOW => (FIRST_BYTES, first),
        over if over > QUICK => (FIRST_BYTES, steady(link, FIRST_BYTES).await?),
        _ => (CHUNK_BYTES_MAX, steady(link, CHUNK_BYTES_MAX).await?),
    };
    let (bytes, best) = match bytes == CHUNK_BYTES_MAX && says_little(best, round_trip) {
        true => (to_u64(bytes) * ROW, row(link, 16).await?.min(row(link, 16 + ROW).await?)),
        false => (to_u64(bytes), best),
    };
    let bytes_per_s = nearest_f64(bytes) / seconds(best, round_trip);
    Ok((LinkRate { bytes_per_s, round_trip_s: round_trip.as_secs_f64() }, clock))
}

/// Whether bytes are the smaller part of what a ping with them takes.
fn says_little(took: Duration, round_trip: Duration) -> bool {
    took < round_trip * 2
}

/// Seconds that the bytes of a ping took which was answered after so long. The difference of two times is no better than
/// they are, so at least a quarter of what was timed, and of the least that a clock can be trusted with.
fn seconds(took: Duration, round_trip: Duration) -> f64 {
    took.saturating_sub(round_trip).max(took / 4).max(Duration::from_micros(1)).as_secs_f64()
}

/// How long several bodies in a row take, until the last is answered.
async fn row(link: &mut Link, first: u64) -> Result<Duration, String> {
    let began = Instant::now();
    for nonce in first..first + ROW {
        ask(link, nonce, CHUNK_BYTES_MAX).await?;
    }
    for nonce in first..first + ROW {
        answer(link, nonce).await?;
    }
    Ok(began.elapsed())
}

/// The better of two pings after another of the same size.
async fn steady(link: &mut Link, bytes: usize) -> Result<Duration, String> {
    ping(link, 6, bytes).await?;
    Ok(ping(link, 7, bytes).await?.min(ping(link, 8, bytes).await?))
}

async fn ping(link: &mut Link, nonce: u64, bytes: usize) -> Result<Duration, String> {
    Ok(asked(link, nonce, bytes).await?.0)
}

/// How long a ping takes, and what its answer says of the other clock.
async fn asked(link: &mut Link, nonce: u64, bytes: usize) -> Result<(Duration, ClockSample), String> {
    let (began, asked_ns) = ask(link, nonce, bytes).await?;
    let pong = answer(link, nonce).await?;
    Ok((began.elapsed(), ClockSample::of(asked_ns, clock_ns(), pong.clock_ns)))
}

/// Sends a ping; when that began, on both clocks.
async fn ask(link: &mut Link, nonce: u64, bytes: usize) -> Result<(Instant, u64), String> {
    let body = match bytes {
        0 => Body::Empty,
        _ => Body::Shared(Region::whole(Arc::new(vec![0u8; bytes]))),
    };
    let began = (Instant::now(), clock_ns());
    let frame = Frame::new(Kind::Ping.code(), encode_number(nonce), body);
    link.sender.send(frame).await.map_err(|e| e.to_string())?;
    Ok(began)
}

/// Waits for the answer to it.
async fn answer(link: &mut Link, nonce: u64) -> Result<Pong, String> {
    let answer = link.receiver.receive(&mut NoBodies).await.map_err(|e| e.to_string())?;
    let kind = Kind::from_code(answer.kind).map_err(|e| e.0)?;
    let wrong = || format!("it answered a ping with {kind:?}");
    if kind != Kind::Pong {
        return Err(wrong());
    }
    let pong = Pong::decode(&answer.head).map_err(|e| e.0)?;
    if pong.nonce != nonce {
        return Err(wrong());
    }
    Ok(pong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bounded_by_what_was_timed() {
        let us = Duration::from_micros;
        // What is left of a long time counts as it is.
        assert_eq!(seconds(us(1000), us(100)), 900e-6);
        // Empty pings that took longer than a megabyte: four times what was timed, not a megabyte in a microsecond.
        assert_eq!(seconds(us(100), us(150)), 25e-6);
        assert_eq!(seconds(us(160), us(150)), 40e-6);
        assert_eq!(seconds(Duration::ZERO, us(1)), 1e-6);
        // Then a megabyte says too little.
        assert!(
            says_little(us(100), us(150)) && says_little(us(299), us(150)) && !says_little(us(300), us(150))
        );
    }
}
