//! Measures links: each by itself, then all at once, because they share the primary's network card.
//!
//! Place in the flow: after the welcomes, before the plan; once for each connection.
//!
//! Invariants: bytes travel as in a product: in frames of the session, with the same cipher. Every wait has a deadline that
//! names the machine. A token bucket on the way lets a burst through after a pause; so each measurement directly follows as
//! many bytes that are not measured. A rate is at most a few times the bytes divided by the time measured: if the bytes take
//! no longer than the round trip (an idle machine may wake up slowly for an empty ping), more bytes are sent.
//!
//! Deliberately absent: the direction back to the primary, which is assumed to be as fast.

use crate::PrimaryError;
use crate::opening::Session;
use bramble_link::{Body, CHUNK_BYTES_MAX, Frame, Link, NoBodies, SharedRegion, clock_ns};
use bramble_matrix::number::{nearest_f64, to_u64};
use bramble_plan::LinkRate;
use bramble_record::log::ClockSample;
use bramble_wire::message::{Kind, Pong, encode_number};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Longest measurement of one link.
const DEADLINE: Duration = Duration::from_secs(10);
/// A link on which 64 KiB take longer than this is slow enough to be judged by 64 KiB.
const QUICK: Duration = Duration::from_millis(20);
/// Bytes of the first measurement of a link.
const FIRST_BYTES: usize = 64 << 10;
/// On a link that takes longer than this for those bytes, one measurement has to do.
const SLOW: Duration = Duration::from_secs(1);
/// Bodies in a row, on a link where a single body is too short to measure.
const ROW: u64 = 8;
/// About how long all links transfer when they are measured at once, if they share the primary's network card …
const TOGETHER: Duration = Duration::from_millis(40);
/// … and the least that each transfers, in time by itself.
const TOGETHER_EACH: Duration = Duration::from_millis(10);
/// Links up to this number are measured one at a time; of more, a part of 1/`FEW` at a time.
const FEW: usize = 16;

/// Bytes a second of all links together, and the errors of links that failed.
type Measured = (Option<f64>, Vec<PrimaryError>);

/// Measures every link that moves bytes and was not measured before, and then all links together, if that pays: `pays` says so
/// when the rates of the single links are known. Sessions whose link fails are removed. `before` is the rate of all links
/// together from an earlier call, which stays if there is nothing to measure or it does not pay.
pub async fn measure(
    sessions: &mut Vec<Session>,
    before: Option<f64>,
    pays: impl FnOnce(&[Session]) -> bool,
) -> Result<Measured, PrimaryError> {
    let is_known = |s: &Session| s.known.rate.is_some() || s.link.shares_memory;
    let all_known = sessions.iter().all(is_known);
    if all_known && before.is_some() {
        return Ok((before, Vec::new()));
    }
    let mut failed = if all_known { Vec::new() } else { measure_each(sessions).await? };
    let measured = sessions.iter().filter(|s| s.known.rate.is_some()).count();
    if measured < 2 {
        return Ok((None, failed));
    }
    if !pays(sessions) {
        return Ok((before, failed));
    }
    let mut best: Option<f64> = None;
    for warm in [false, true, true] {
        if sessions.iter().filter(|s| s.known.rate.is_some()).count() < 2 {
            return Ok((None, failed));
        }
        let rate = measure_together(sessions, &mut failed).await?;
        if warm {
            best = Some(best.map_or(rate, |best| best.max(rate)));
        }
    }
    Ok((best, failed))
}

/// Measures every link by itself that was not measured before; the errors of links that failed, whose sessions are removed.
async fn measure_each(sessions: &mut Vec<Session>) -> Result<Vec<PrimaryError>, PrimaryError> {
    let at_once = if sessions.len() > FEW { sessions.len() / FEW } else { 1 };
    let turns = Rc::new(Semaphore::new(at_once));
    let each = |session: Session| {
        let turns = turns.clone();
        async move {
            // The semaphore is never closed.
            let _turn = turns.acquire().await;
            measure_one(session).await
        }
    };
    let mut failed = Vec::new();
    for session in for_all(std::mem::take(sessions), each).await? {
        match session {
            Ok(session) => sessions.push(session),
            Err(e) => failed.push(e),
        }
    }
    Ok(failed)
}

/// Runs `each` for all sessions concurrently; returns the results in their order.
async fn for_all<F, T>(sessions: Vec<Session>, each: impl Fn(Session) -> F) -> Result<Vec<T>, PrimaryError>
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

/// Round trip of an empty ping (best of four), then bytes a second with a large one.
async fn measure_one(mut session: Session) -> Result<Session, PrimaryError> {
    if session.link.shares_memory || session.known.rate.is_some() {
        return Ok(session);
    }
    let name = session.name.clone();
    let (rate, clock) = in_time(&name, FIRST_BYTES, rate(&mut session.link)).await?;
    (session.known.rate, session.known.clock) = (Some(rate), Some(clock));
    Ok(session)
}

/// All links at once, together with as many bytes as one can carry in `TOGETHER`; returns bytes a second of all.
async fn measure_together(
    sessions: &mut Vec<Session>,
    failed: &mut Vec<PrimaryError>,
) -> Result<f64, PrimaryError> {
    let began = Instant::now();
    let own_time = (TOGETHER / sessions.len().clamp(1, 64) as u32).max(TOGETHER_EACH);
    let each = move |mut session: Session| async move {
        let Some(rate) = session.known.rate else { return (0, Ok(session)) };
        let share = rate.bytes_per_s * own_time.as_secs_f64();
        let bytes = (share as usize).clamp(1 << 10, CHUNK_BYTES_MAX);
        let name = session.name.clone();
        // On a fast link one body is too short: several are sent, one after the other.
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
    let trips = sessions.iter().filter_map(|s| s.known.rate).map(|r| r.round_trip_s).fold(0.0, f64::max);
    for (count, session) in for_all(std::mem::take(sessions), each).await? {
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
                "sending {} KiB to it takes more than {} s; check its network",
                bytes >> 10,
                DEADLINE.as_secs()
            );
            Err(unreachable(why))
        }
    }
}

async fn rate(link: &mut Link) -> Result<(LinkRate, ClockSample), String> {
    let (mut round_trip, mut clock) = timed_ping(link, 0, 0).await?;
    for nonce in 1..4 {
        let (trip, sample) = timed_ping(link, nonce, 0).await?;
        (round_trip, clock) = (round_trip.min(trip), ClockSample::more_accurate(Some(clock), sample));
    }
    let mut first = ping(link, 4, FIRST_BYTES).await?;
    if first > round_trip + QUICK / 8 {
        // The ping may have been delayed by chance: by a processor quota, or a neighbour's burst.
        first = first.min(ping(link, 5, FIRST_BYTES).await?);
    }
    let (bytes, best) = match first.saturating_sub(round_trip) {
        over if over > SLOW => (FIRST_BYTES, first),
        over if over > QUICK => (FIRST_BYTES, best_ping(link, FIRST_BYTES).await?),
        _ => (CHUNK_BYTES_MAX, best_ping(link, CHUNK_BYTES_MAX).await?),
    };
    let (bytes, best) = match bytes == CHUNK_BYTES_MAX && is_too_short(best, round_trip) {
        true => (to_u64(bytes) * ROW, time_row(link, 16).await?.min(time_row(link, 16 + ROW).await?)),
        false => (to_u64(bytes), best),
    };
    let bytes_per_s = nearest_f64(bytes) / seconds(best, round_trip);
    Ok((LinkRate { bytes_per_s, round_trip_s: round_trip.as_secs_f64() }, clock))
}

/// Whether a ping's bytes are the smaller part of its time.
fn is_too_short(took: Duration, round_trip: Duration) -> bool {
    took < round_trip * 2
}

/// Seconds that the bytes of a ping took. The difference of two times is no more accurate than the times, so at least a quarter
/// of the time measured, and at least a microsecond.
fn seconds(took: Duration, round_trip: Duration) -> f64 {
    took.saturating_sub(round_trip).max(took / 4).max(Duration::from_micros(1)).as_secs_f64()
}

/// Time for several bodies in a row, until the last is answered.
async fn time_row(link: &mut Link, first: u64) -> Result<Duration, String> {
    let began = Instant::now();
    for nonce in first..first + ROW {
        send_ping(link, nonce, CHUNK_BYTES_MAX).await?;
    }
    for nonce in first..first + ROW {
        receive_pong(link, nonce).await?;
    }
    Ok(began.elapsed())
}

/// The better of two pings that follow an unmeasured one of the same size.
async fn best_ping(link: &mut Link, bytes: usize) -> Result<Duration, String> {
    ping(link, 6, bytes).await?;
    Ok(ping(link, 7, bytes).await?.min(ping(link, 8, bytes).await?))
}

/// Duration of a ping.
pub async fn ping(link: &mut Link, nonce: u64, bytes: usize) -> Result<Duration, String> {
    Ok(timed_ping(link, nonce, bytes).await?.0)
}

/// Duration of a ping, and the clock sample from its answer.
async fn timed_ping(link: &mut Link, nonce: u64, bytes: usize) -> Result<(Duration, ClockSample), String> {
    let (began, asked_ns) = send_ping(link, nonce, bytes).await?;
    let pong = receive_pong(link, nonce).await?;
    Ok((began.elapsed(), ClockSample::of(asked_ns, clock_ns(), pong.clock_ns)))
}

/// Sends a ping; returns when that began, on both clocks.
async fn send_ping(link: &mut Link, nonce: u64, bytes: usize) -> Result<(Instant, u64), String> {
    let body = match bytes {
        0 => Body::Empty,
        _ => Body::Shared(SharedRegion::whole(Arc::new(vec![0u8; bytes]))),
    };
    let began = (Instant::now(), clock_ns());
    let frame = Frame::new(Kind::Ping.code(), encode_number(nonce), body);
    link.sender.send(frame).await.map_err(|e| e.to_string())?;
    Ok(began)
}

/// Waits for the answer to a ping.
async fn receive_pong(link: &mut Link, nonce: u64) -> Result<Pong, String> {
    let (answer, kind) = loop {
        let answer = link.receiver.receive(&mut NoBodies).await.map_err(|e| e.to_string())?;
        let kind = Kind::from_code(answer.kind).map_err(|e| e.0)?;
        // The state of a link between two machines may come first, or the answer to a step of a making that failed.
        if !matches!(kind, Kind::Reached | Kind::Placed) {
            break (answer, kind);
        }
    };
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
    fn a_rate_is_bounded_by_the_time_measured() {
        let us = Duration::from_micros;
        // A time much longer than the round trip: the difference counts.
        assert_eq!(seconds(us(1000), us(100)), 900e-6);
        // Empty pings that took longer than a megabyte: a quarter of the time counts, not a microsecond.
        assert_eq!(seconds(us(100), us(150)), 25e-6);
        assert_eq!(seconds(us(160), us(150)), 40e-6);
        assert_eq!(seconds(Duration::ZERO, us(1)), 1e-6);
        // In such cases a megabyte is too short to measure.
        assert!(
            is_too_short(us(100), us(150))
                && is_too_short(us(299), us(150))
                && !is_too_short(us(300), us(150))
        );
    }
}
