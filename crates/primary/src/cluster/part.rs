//! Puts one part of a matrix on one machine.
//!
//! Place in the flow: `machines.rs` runs this for all machines at once, each over its own session.
//!
//! Invariants: another thread computes the digest of the source meanwhile; a generated part is not read here. A machine that
//! neither takes nor sends anything for `SILENCE_MAX` is lost. A part that the machine refuses is not sent to its end.
//!
//! Deliberately absent: which part goes where, and what follows if the digests differ.

use super::task_count::TaskCount;
use crate::bodies::rows_of;
use bramble_arrays::{PartToPut, Refusal, TaskOutcome};
use bramble_link::{Body, Frame, NoBodies, Receiver, SendProgressProbe, Sender, SharedRegion};
use bramble_matrix::number::to_u64;
use bramble_matrix::{Digest128, Digester, Matrix, Rect};
use bramble_sessions::{LostConnection, PrimaryError, Session, UsedSession, off_loop};
use bramble_wire::limits::{PING_AFTER, SILENCE_MAX};
use bramble_wire::message::{
    Generated, Kind, PartSource, PlacedHead, PutHead, PutOutcome, decode_error, encode_number, part_pieces,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often the progress of a link is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Puts a part: the session, unless its link broke; and the digests of the part, there and here, or a refusal.
pub(super) async fn put_part(
    mut session: Session,
    part: PartToPut<Matrix>,
    count: Rc<TaskCount>,
) -> (Result<UsedSession, LostConnection>, TaskOutcome) {
    let before = session.link.sender.bytes_sent();
    let own = tokio::task::spawn_local(digest_of(part.source.clone(), part.rect));
    let outcome = match exchange(&mut session, &part, &count).await {
        Ok(outcome) => outcome,
        Err(why) => {
            let lost = LostConnection { name: session.name, why: why.clone() };
            return (Err(lost), TaskOutcome::Refused(Refusal { why, is_apart: false, answers: Vec::new() }));
        }
    };
    let own = own.await.unwrap_or_else(|e| Err(PrimaryError::Failed(format!("reading a part: {e}"))));
    let outcome = match outcome {
        PutOutcome::Held { digest, .. } => TaskOutcome::Held { digest, own: own.map_err(|e| e.to_string()) },
        PutOutcome::Refused(why) => {
            TaskOutcome::Refused(Refusal { why, is_apart: false, answers: Vec::new() })
        }
    };
    let sent = session.link.sender.bytes_sent().saturating_sub(before);
    (Ok(UsedSession { session, sent }), outcome)
}

/// The digest of a part as its machine computes it: of its shape and its elements by rows. `None` for a generated
/// matrix. Another thread reads the elements.
pub(crate) async fn digest_of(source: Matrix, rect: Rect) -> Result<Option<Digest128>, PrimaryError> {
    if source.generator().is_some() {
        return Ok(None);
    }
    let read = move || {
        let mut digester = Digester::default();
        digester.update(&rect.rows.len().to_le_bytes());
        digester.update(&rect.cols.len().to_le_bytes());
        for piece in part_pieces(rect, source.dtype()) {
            let rows = rows_of(&source, piece.rect)?;
            (0..rows.runs).for_each(|run| digester.update(rows.run(run)));
        }
        Ok::<_, PrimaryError>(digester.digest())
    };
    off_loop("reading a part", read).await?.map(Some)
}

/// Sends the part and waits for the machine's answer; or why its link is lost.
async fn exchange(
    session: &mut Session,
    part: &PartToPut<Matrix>,
    count: &TaskCount,
) -> Result<PutOutcome, String> {
    let is_silent_link = session.link.shares_memory;
    let (sender, receiver) = (&mut *session.link.sender, &mut *session.link.receiver);
    let silence = silence(receiver.arriving(), sender.send_progress(), is_silent_link);
    let (answered, is_answered) = watch::channel(false);
    let both = async {
        let sending = send(sender, part, is_answered, count);
        let answer = async {
            let outcome = answer(receiver, part.number).await?;
            let _ = answered.send(true);
            Ok(outcome)
        };
        tokio::try_join!(sending, answer).map(|((), outcome)| outcome)
    };
    tokio::select! {
        biased;
        outcome = both => outcome,
        why = silence => Err(why),
    }
}

/// Sends the frames of a part, unless the machine refuses it first; then pings until the machine has answered.
async fn send(
    sender: &mut dyn Sender,
    part: &PartToPut<Matrix>,
    mut is_answered: watch::Receiver<bool>,
    count: &TaskCount,
) -> Result<(), String> {
    send_elements(sender, part, &|bytes| {
        count.add(bytes);
        *is_answered.borrow()
    })
    .await?;
    // An answer that is overdue shows by its pings that the machine is alive.
    loop {
        tokio::select! {
            biased;
            answered = is_answered.wait_for(|answered| *answered) => return answered.map(drop).map_err(|e| e.to_string()),
            () = tokio::time::sleep(PING_AFTER) => {}
        }
        let ping = Frame::new(Kind::Ping.code(), encode_number(0), Body::Empty);
        sender.send(ping).await.map_err(|e| e.to_string())?;
    }
}

/// Sends the frames of a part, until `is_over`, which is asked before each frame and told how many bytes the last one had.
pub(super) async fn send_elements(
    sender: &mut dyn Sender,
    part: &PartToPut<Matrix>,
    is_over: &dyn Fn(u64) -> bool,
) -> Result<(), String> {
    let dtype = part.source.dtype();
    let head = |first: u64, source: PartSource| {
        PutHead { array: part.number, part: part.rect, first, dtype, source }.encode()
    };
    let frame = |head: Vec<u8>, body: SharedRegion| Frame::new(Kind::Put.code(), head, Body::Shared(body));
    if let Some(generator) = part.source.generator() {
        let (row, col) = (part.rect.rows.start, part.rect.cols.start);
        let description = Generated { generator: generator.to_bytes(), row, col }.encode();
        let body = SharedRegion::whole(Arc::new(description));
        return sender.send(frame(head(0, PartSource::Generated), body)).await.map_err(|e| e.to_string());
    }
    let mut sent = 0;
    for piece in part_pieces(part.rect, dtype) {
        if is_over(sent) {
            return Ok(());
        }
        let body = rows_of(&part.source, piece.rect).map_err(|e| e.to_string())?;
        sent = to_u64(body.len());
        sender.send(frame(head(piece.first, PartSource::Data), body)).await.map_err(|e| e.to_string())?;
    }
    is_over(sent);
    Ok(())
}

/// Ends when no byte has moved on a link for `SILENCE_MAX`, with the reason why the machine is lost.
pub(super) async fn silence(
    arriving: Rc<Cell<u64>>,
    leaving: SendProgressProbe,
    is_silent_link: bool,
) -> String {
    let (mut moved, mut since) = ((arriving.get(), leaving().acknowledged), Instant::now());
    while is_silent_link || since.elapsed() < SILENCE_MAX {
        tokio::time::sleep(LOOK).await;
        let now = (arriving.get(), leaving().acknowledged);
        if now != moved {
            (moved, since) = (now, Instant::now());
        }
    }
    format!("it has been silent for {} s", SILENCE_MAX.as_secs())
}

/// What the machine says of the part.
async fn answer(receiver: &mut dyn Receiver, number: u64) -> Result<PutOutcome, String> {
    loop {
        let arrived = receiver.receive(&mut NoBodies).await.map_err(|e| e.to_string())?;
        match Kind::from_code(arrived.kind).map_err(|e| e.0)? {
            Kind::Placed => {
                let PlacedHead { array, outcome } = PlacedHead::decode(&arrived.head).map_err(|e| e.0)?;
                if array != number {
                    return Err(format!("it answered for array {array} instead of {number}"));
                }
                return Ok(outcome);
            }
            Kind::Pong => {}
            Kind::Error => return Err(decode_error(&arrived.head).map_err(|e| e.0)?),
            other => return Err(format!("it sent a message of kind {other:?} while a part was placed")),
        }
    }
}

/// Frees parts at a machine. A link that breaks here is noticed by the goodbye that follows.
pub(super) async fn free_numbers(session: &mut Session, numbers: &[u64]) {
    for number in numbers {
        let frame = Frame::new(Kind::Free.code(), encode_number(*number), Body::Empty);
        let _ = session.link.sender.send(frame).await;
    }
}
