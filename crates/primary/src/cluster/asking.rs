//! Asks one machine for its part of a reduction, or to make its part of an array, over its session.
//!
//! Place in the flow: `machines.rs` runs this for all machines at once. `bramble_arrays::Asking` says what is sent when.
//!
//! Invariants: a machine that neither takes nor sends anything for `SILENCE_MAX` is lost. An answer has the bytes that its
//! question implies. Blocks are freed at the end, also after a refusal.
//!
//! Deliberately absent: the order of blocks and questions.

use super::part::{free_numbers, send_elements, silence};
use super::task_count::TaskCount;
use bramble_arrays::{
    Answer, Asking, HeldMeaning, NextMessage, Question, QuestionMessage, QuestionRound, Refusal, TaskOutcome,
};
use bramble_link::{ArrivedBody, Body, BodyPlacer, Frame, Landing, LinkError, Receiver, Sender};
use bramble_matrix::number::to_u64;
use bramble_matrix::{Matrix, Rect};
use bramble_sessions::{LostConnection, Session, UsedSession};
use bramble_wire::limits::PING_AFTER;
use bramble_wire::message::{
    Kind, PlacedHead, PutOutcome, Reached, ReducedHead, decode_error, encode_number,
};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::Notify;

/// A conversation, of which the task that sends and the one that receives each have a half.
struct Talk {
    asking: RefCell<Asking<Matrix>>,
    heard: Notify,
    count: Rc<TaskCount>,
}

/// The answers, or why the machine refuses.
type Answered = Result<Vec<Answer>, Refusal>;

/// The session, unless its link broke; and the answers, or why there are none.
pub(super) async fn ask(
    mut session: Session,
    rounds: Vec<QuestionRound<Matrix>>,
    count: Rc<TaskCount>,
) -> (Result<UsedSession, LostConnection>, TaskOutcome) {
    let before = session.link.sender.bytes_sent();
    let expected = rounds.iter().flat_map(|round| &round.questions).map(ComingAnswer::of).collect();
    let talk = Talk { asking: RefCell::new(Asking::new(rounds)), heard: Notify::new(), count };
    let outcome = match exchange(&mut session, &talk, expected).await {
        Ok(Ok(answers)) => TaskOutcome::Answered(answers),
        Ok(Err(refusal)) => TaskOutcome::Refused(refusal),
        Err(why) => {
            let lost = LostConnection { name: session.name, why: why.clone() };
            return (Err(lost), TaskOutcome::Refused(Refusal { why, is_apart: false, answers: Vec::new() }));
        }
    };
    free_numbers(&mut session, &talk.asking.into_inner().left()).await;
    let sent = session.link.sender.bytes_sent().saturating_sub(before);
    (Ok(UsedSession { session, sent }), outcome)
}

async fn exchange(
    session: &mut Session,
    talk: &Talk,
    expected: Vec<ComingAnswer>,
) -> Result<Answered, String> {
    let is_silent_link = session.link.shares_memory;
    let (sender, receiver) = (&mut *session.link.sender, &mut *session.link.receiver);
    let silence = silence(receiver.arriving(), sender.send_progress(), is_silent_link);
    let both = async {
        tokio::try_join!(send(sender, talk), receive(receiver, expected, talk)).map(|((), answers)| answers)
    };
    tokio::select! {
        biased;
        outcome = both => outcome,
        why = silence => Err(why),
    }
}

/// Sends what is next, and pings while it waits: so the machine shows that it is alive.
async fn send(sender: &mut dyn Sender, talk: &Talk) -> Result<(), String> {
    let text = |e: LinkError| e.to_string();
    loop {
        let next = talk.asking.borrow_mut().next_message();
        let frame = match next {
            NextMessage::Over => return Ok(()),
            NextMessage::Wait => {
                let heard = tokio::time::timeout(PING_AFTER, talk.heard.notified()).await.is_ok();
                if heard {
                    continue;
                }
                Frame::new(Kind::Ping.code(), encode_number(0), Body::Empty)
            }
            NextMessage::Send(QuestionMessage::Put(part)) => {
                send_elements(sender, &part, &|_| talk.asking.borrow().has_refused()).await?;
                continue;
            }
            NextMessage::Send(QuestionMessage::Fetch(fetch)) => {
                Frame::new(Kind::Fetch.code(), fetch.encode(), Body::Empty)
            }
            NextMessage::Send(QuestionMessage::Ask(question)) => question_frame(&question),
            NextMessage::Send(QuestionMessage::Free(number)) => {
                Frame::new(Kind::Free.code(), encode_number(number), Body::Empty)
            }
        };
        sender.send(frame).await.map_err(text)?;
    }
}

fn question_frame(question: &Question) -> Frame {
    let (kind, head) = match question {
        Question::Reduce(head, _) => (Kind::Reduce, head.encode()),
        Question::Make(head) => (Kind::Make, head.encode()),
    };
    Frame::new(kind.code(), head, Body::Empty)
}

impl Talk {
    /// Changes the conversation, and wakes the task that sends.
    fn hear<R>(&self, change: impl FnOnce(&mut Asking<Matrix>) -> R) -> R {
        let result = change(&mut self.asking.borrow_mut());
        self.heard.notify_one();
        result
    }
}

/// An answer that has not come, or not as a whole.
struct ComingAnswer {
    number: u64,
    /// Number and rectangle of a reduction, and the bytes of its answer.
    reduced: Option<(u8, Rect, u64)>,
    bytes: Vec<u8>,
}

impl ComingAnswer {
    fn of(question: &Question) -> Self {
        let reduced = match question {
            Question::Reduce(head, bytes) => Some((head.reduction, head.rect, *bytes)),
            Question::Make(_) => None,
        };
        Self { number: question.number(), reduced, bytes: Vec::new() }
    }
}

/// Takes the answers, in any order.
async fn receive(
    receiver: &mut dyn Receiver,
    mut coming: Vec<ComingAnswer>,
    talk: &Talk,
) -> Result<Answered, String> {
    let (mut answers, mut is_apart, mut refused) = (Vec::new(), false, None);
    let first = coming.iter().map(|asked| asked.number).min().unwrap_or(0);
    while !coming.is_empty() {
        if let Some(why) = refused.take_if(|_| talk.asking.borrow().is_over()) {
            let is_apart = talk.asking.borrow().keeps_parts();
            return Ok(Err(Refusal { why, is_apart, answers }));
        }
        let arrived = receiver.receive(&mut AnswerPlacer).await.map_err(|e| e.to_string())?;
        match Kind::from_code(arrived.kind).map_err(|e| e.0)? {
            Kind::Reduced => {
                let head = ReducedHead::decode(&arrived.head).map_err(|e| e.0)?;
                // Numbers rise: it belongs to an earlier conversation, which a refusal has ended.
                if head.number < first {
                    continue;
                }
                let foreign =
                    || format!("it answered question {} with other bytes than were asked", head.number);
                let at = coming.iter().position(|asked| asked.number == head.number).ok_or_else(foreign)?;
                let ComingAnswer { reduced, bytes, .. } = &mut coming[at];
                let (reduction, rect, total) = reduced.ok_or_else(foreign)?;
                let is_next = head.total == total && head.first == to_u64(bytes.len());
                append(bytes, arrived.body).filter(|()| is_next).ok_or_else(foreign)?;
                if to_u64(bytes.len()) > total {
                    return Err(foreign());
                }
                if to_u64(bytes.len()) == total {
                    answers.push(Answer::Reduced(reduction, rect, std::mem::take(bytes)));
                    coming.swap_remove(at);
                    talk.count.add(1);
                    talk.hear(|asking| asking.answered(head.number));
                }
            }
            Kind::Placed => {
                let PlacedHead { array, outcome } = PlacedHead::decode(&arrived.head).map_err(|e| e.0)?;
                let is_step = |asked: &ComingAnswer| asked.number == array && asked.reduced.is_none();
                match outcome {
                    PutOutcome::Held { digest, .. } => {
                        let meaning = talk.hear(|asking| asking.held(array));
                        let step = coming.iter().position(is_step);
                        if let Some(at) = step.filter(|_| meaning == HeldMeaning::Answer) {
                            talk.count.add(1);
                            answers.push(Answer::Made(array, digest));
                            coming.swap_remove(at);
                        }
                    }
                    PutOutcome::Refused(why) if talk.hear(|asking| asking.refused(array, is_apart)) => {
                        refused = Some(why);
                    }
                    PutOutcome::Refused(_) => {}
                }
            }
            // The machine refuses each fetch that waits for the link that has ended.
            Kind::Reached => is_apart |= !Reached::decode(&arrived.head).map_err(|e| e.0)?.is_there,
            Kind::Pong => {}
            Kind::Error => return Err(decode_error(&arrived.head).map_err(|e| e.0)?),
            other => return Err(format!("it sent a message of kind {other:?} instead of an answer")),
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
