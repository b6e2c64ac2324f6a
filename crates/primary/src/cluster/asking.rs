//! Asks one machine for its part of a reduction, over its session.
//!
//! Place in the flow: `reducing.rs` runs this for all machines at once.
//!
//! Invariants: the next block travels while the machine computes with the one before; it holds no more than two. The primary
//! frees all of them, also after a refusal. A machine that neither takes nor sends anything for `SILENCE_MAX` is lost. An answer
//! has the bytes that its question implies.

use super::part::{PartToPut, UsedSession, send_elements, silence};
use super::putting::free_numbers;
use crate::opening::{LostConnection, Session};
use bramble_link::{ArrivedBody, Body, BodyPlacer, Frame, Landing, LinkError, Receiver, Sender};
use bramble_matrix::Rect;
use bramble_matrix::number::to_u64;
use bramble_wire::limits::{PING_AFTER, REDUCTIONS_MAX};
use bramble_wire::message::{
    Kind, PlacedHead, PutOutcome, ReduceHead, ReducedHead, decode_error, encode_number,
};
use std::cell::RefCell;
use tokio::sync::watch;

/// Questions that a machine may have at a time.
const QUESTIONS_AHEAD: usize = 2;

const _: () = assert!(QUESTIONS_AHEAD <= REDUCTIONS_MAX);

/// What the machine has said so far.
#[derive(Clone, Copy, Default)]
struct Heard {
    /// Questions that it has answered.
    answers: usize,
    /// Blocks that it holds as a whole.
    blocks: usize,
    has_refused: bool,
}

/// One question.
pub(super) struct Question {
    pub(super) head: ReduceHead,
    /// Bytes of the answer.
    pub(super) bytes: u64,
}

/// All questions to one machine: blocks of the travelling operand, and the questions about each.
pub(super) struct Questions {
    pub(super) rounds: Vec<(Option<PartToPut>, Vec<Question>)>,
}

/// The answers, or why the machine refuses.
type Answered = Result<Vec<(Rect, Vec<u8>)>, String>;

/// The session, unless its link broke; and the answers, or why there are none.
pub(super) async fn ask(
    mut session: Session,
    questions: Questions,
) -> (Result<UsedSession, LostConnection>, Answered) {
    let before = session.link.sender.bytes_sent();
    // Blocks that are at the machine.
    let there = RefCell::new(Vec::new());
    match exchange(&mut session, questions, &there).await {
        Ok(answered) => {
            free_numbers(&mut session, &there.into_inner()).await;
            let sent = session.link.sender.bytes_sent().saturating_sub(before);
            (Ok(UsedSession { session, sent }), answered)
        }
        Err(why) => {
            let lost = LostConnection { name: session.name, why: why.clone() };
            (Err(lost), Err(why))
        }
    }
}

async fn exchange(
    session: &mut Session,
    questions: Questions,
    there: &RefCell<Vec<u64>>,
) -> Result<Answered, String> {
    let is_silent_link = session.link.shares_memory;
    let (sender, receiver) = (&mut *session.link.sender, &mut *session.link.receiver);
    let silence = silence(receiver.arriving(), sender.send_progress(), is_silent_link);
    let expected: Vec<(ReduceHead, u64)> = questions
        .rounds
        .iter()
        .flat_map(|(_, round)| round.iter().map(|one| (one.head, one.bytes)))
        .collect();
    let (tell, heard) = watch::channel(Heard::default());
    let both = async {
        let sending = send(sender, questions, there, heard);
        tokio::try_join!(sending, receive(receiver, expected, tell)).map(|((), answers)| answers)
    };
    tokio::select! {
        biased;
        outcome = both => outcome,
        why = silence => Err(why),
    }
}

/// Sends blocks and questions, a few ahead of the answers; then waits for the last answer.
async fn send(
    sender: &mut dyn Sender,
    questions: Questions,
    there: &RefCell<Vec<u64>>,
    mut heard: watch::Receiver<Heard>,
) -> Result<(), String> {
    let text = |e: LinkError| e.to_string();
    let (mut asked, mut blocks): (usize, usize) = (0, 0);
    // Blocks that are there, each with the number of questions up to its last.
    let mut done_with: Vec<(u64, usize)> = Vec::new();
    for (block, round) in questions.rounds {
        if let Some(block) = block {
            let ahead = (asked + 1).saturating_sub(QUESTIONS_AHEAD);
            if !reach(sender, &mut heard, |heard| heard.answers >= ahead).await? {
                return Ok(());
            }
            let answers = heard.borrow().answers;
            for (number, _) in done_with.extract_if(.., |(_, last)| *last <= answers) {
                there.borrow_mut().retain(|one| *one != number);
                let free = Frame::new(Kind::Free.code(), encode_number(number), Body::Empty);
                sender.send(free).await.map_err(text)?;
            }
            there.borrow_mut().push(block.number);
            blocks += 1;
            send_elements(sender, &block, &|| heard.borrow().has_refused).await?;
            done_with.push((block.number, asked + round.len()));
        }
        for question in round {
            let ahead = (asked + 1).saturating_sub(QUESTIONS_AHEAD);
            if !reach(sender, &mut heard, |heard| heard.answers >= ahead && heard.blocks >= blocks).await? {
                return Ok(());
            }
            let frame = Frame::new(Kind::Reduce.code(), question.head.encode(), Body::Empty);
            sender.send(frame).await.map_err(text)?;
            asked += 1;
        }
    }
    reach(sender, &mut heard, |heard| heard.answers >= asked).await.map(drop)
}

/// Waits for something, and pings meanwhile: so the machine shows that it is alive. Whether it has not refused.
async fn reach(
    sender: &mut dyn Sender,
    heard: &mut watch::Receiver<Heard>,
    is_reached: impl Fn(&Heard) -> bool,
) -> Result<bool, String> {
    loop {
        tokio::select! {
            biased;
            reached = heard.wait_for(|heard| heard.has_refused || is_reached(heard)) => {
                return reached.map(|heard| !heard.has_refused).map_err(|e| e.to_string());
            }
            () = tokio::time::sleep(PING_AFTER) => {}
        }
        let ping = Frame::new(Kind::Ping.code(), encode_number(0), Body::Empty);
        sender.send(ping).await.map_err(|e| e.to_string())?;
    }
}

/// Takes the answers, in any order.
async fn receive(
    receiver: &mut dyn Receiver,
    expected: Vec<(ReduceHead, u64)>,
    tell: watch::Sender<Heard>,
) -> Result<Answered, String> {
    let mut answers: Vec<(Rect, Vec<u8>)> = Vec::new();
    let mut coming: Vec<(ReduceHead, u64, Vec<u8>)> =
        expected.into_iter().map(|(head, bytes)| (head, bytes, Vec::new())).collect();
    while !coming.is_empty() {
        let arrived = receiver.receive(&mut AnswerPlacer).await.map_err(|e| e.to_string())?;
        match Kind::from_code(arrived.kind).map_err(|e| e.0)? {
            Kind::Reduced => {
                let head = ReducedHead::decode(&arrived.head).map_err(|e| e.0)?;
                let foreign =
                    || format!("it answered question {} with other bytes than were asked", head.number);
                let at =
                    coming.iter().position(|(asked, ..)| asked.number == head.number).ok_or_else(foreign)?;
                let (asked, total, bytes) = &mut coming[at];
                let is_next = head.total == *total && head.first == to_u64(bytes.len());
                append(bytes, arrived.body).filter(|()| is_next).ok_or_else(foreign)?;
                if to_u64(bytes.len()) > *total {
                    return Err(foreign());
                }
                if to_u64(bytes.len()) == *total {
                    answers.push((asked.rect, std::mem::take(bytes)));
                    coming.swap_remove(at);
                    tell.send_modify(|heard| heard.answers += 1);
                }
            }
            Kind::Placed => match PlacedHead::decode(&arrived.head).map_err(|e| e.0)?.outcome {
                PutOutcome::Held { .. } => tell.send_modify(|heard| heard.blocks += 1),
                PutOutcome::Refused(why) => {
                    tell.send_modify(|heard| heard.has_refused = true);
                    return Ok(Err(why));
                }
            },
            Kind::Pong => {}
            Kind::Error => return Err(decode_error(&arrived.head).map_err(|e| e.0)?),
            other => return Err(format!("it sent a message of kind {other:?} while a matrix was reduced")),
        }
    }
    Ok(Ok(answers))
}

/// Adds a body to an answer; `None` if it is in other memory than answers come in.
fn append(bytes: &mut Vec<u8>, body: ArrivedBody) -> Option<()> {
    match body {
        ArrivedBody::Landed(landing) => {
            let new = landing.into_any().downcast::<Vec<u8>>().ok()?;
            if bytes.is_empty() {
                *bytes = *new;
            } else {
                bytes.extend_from_slice(&new);
            }
        }
        ArrivedBody::Shared(region) => {
            (0..region.runs).for_each(|run| bytes.extend_from_slice(region.run(run)))
        }
        ArrivedBody::Empty | ArrivedBody::Leased(_) => return None,
    }
    Some(())
}

/// Places the bodies of answers.
struct AnswerPlacer;

impl BodyPlacer for AnswerPlacer {
    fn place(&mut self, kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        match Kind::from_code(kind).map_err(|e| e.0)? {
            Kind::Reduced => Ok(Box::new(vec![0; body_bytes])),
            other => Err(format!("a message of kind {other:?} has no body here")),
        }
    }
}
