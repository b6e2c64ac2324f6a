//! Asks one machine for its part of a reduction, or to make its part of an array, over its session.
//!
//! Place in the flow: `reducing.rs` and `making.rs` run this for all machines at once.
//!
//! Invariants: the blocks of the next round travel while the machine computes with those before; it holds no more than those of
//! two rounds. The primary frees all of them, also after a refusal. A machine that neither takes nor sends anything for
//! `SILENCE_MAX` is lost. An answer has the bytes that its question implies.

use super::part::{PartToPut, send_elements, silence};
use super::putting::free_numbers;
use bramble_link::{ArrivedBody, Body, BodyPlacer, Frame, Landing, LinkError, Receiver, Sender};
use bramble_matrix::number::to_u64;
use bramble_matrix::{Digest128, Rect, Reduction};
use bramble_sessions::{LostConnection, MachineJob, Session, UsedSession};
use bramble_wire::limits::{MAKINGS_MAX, PING_AFTER, REDUCTIONS_MAX};
use bramble_wire::message::{
    FetchHead, Kind, MakeHead, PlacedHead, PutOutcome, Reached, ReduceHead, ReducedHead, decode_error,
    encode_number,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use tokio::sync::watch;

/// Questions that a machine may have at a time.
const QUESTIONS_AHEAD: usize = 2;

const _: () = assert!(QUESTIONS_AHEAD <= REDUCTIONS_MAX && QUESTIONS_AHEAD <= MAKINGS_MAX);

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
pub(super) enum Question {
    /// A reduction, and the bytes of its answer.
    Reduce(ReduceHead, u64),
    /// A step that makes a part of an array.
    Make(MakeHead),
}

/// A block of an operand that the machine does not hold.
pub(super) enum TravellingBlock {
    /// From this process.
    Put(PartToPut),
    /// From another machine.
    Fetch(FetchHead),
}

/// Blocks, and the questions that need them.
pub(super) struct QuestionRound {
    pub(super) blocks: Vec<TravellingBlock>,
    pub(super) questions: Vec<Question>,
    /// Whether all earlier questions have to be answered first.
    pub(super) waits: bool,
}

/// An answer.
pub(super) enum Answer {
    /// The bytes of a reduction, by its number, of a rectangle.
    Reduced(u8, Rect, Vec<u8>),
    /// A step is done; of the last one of a part, its digest.
    Made(Digest128),
}

impl Answer {
    /// The bytes of that reduction of that rectangle, if this is it.
    pub(super) fn of(&self, wanted: Reduction, of: Rect) -> Option<Vec<u8>> {
        match self {
            Self::Reduced(code, rect, bytes) if (*code, *rect) == (wanted.code().0, of) => {
                Some(bytes.clone())
            }
            _ => None,
        }
    }
}

/// Why a machine refuses.
pub(super) struct Refusal {
    pub(super) why: String,
    /// Whether its link with another machine has ended before.
    pub(super) is_apart: bool,
}

/// The answers, or why the machine refuses.
pub(super) type Answered = Result<Vec<Answer>, Refusal>;

/// Numbers that the machine knows: of blocks, and of parts that it makes.
#[derive(Default)]
struct KnownNumbers {
    blocks: Vec<u64>,
    parts: Vec<u64>,
}

impl Question {
    fn number(&self) -> u64 {
        match self {
            Self::Reduce(head, _) => head.number,
            Self::Make(head) => head.number,
        }
    }

    fn frame(&self) -> Frame {
        let (kind, head) = match self {
            Self::Reduce(head, _) => (Kind::Reduce, head.encode()),
            Self::Make(head) => (Kind::Make, head.encode()),
        };
        Frame::new(kind.code(), head, Body::Empty)
    }
}

impl TravellingBlock {
    fn number(&self) -> u64 {
        match self {
            Self::Put(part) => part.number,
            Self::Fetch(fetch) => fetch.array,
        }
    }
}

/// The jobs that ask machines, each its questions.
pub(super) fn jobs_of(rounds: BTreeMap<usize, Vec<QuestionRound>>) -> Vec<MachineJob<Answered>> {
    let job = |(machine, rounds): (usize, Vec<QuestionRound>)| -> MachineJob<Answered> {
        (machine, Box::new(move |session| Box::pin(ask(session, rounds))))
    };
    rounds.into_iter().map(job).collect()
}

/// The session, unless its link broke; and the answers, or why there are none.
pub(super) async fn ask(
    mut session: Session,
    questions: Vec<QuestionRound>,
) -> (Result<UsedSession, LostConnection>, Answered) {
    let before = session.link.sender.bytes_sent();
    let there = RefCell::new(KnownNumbers::default());
    match exchange(&mut session, questions, &there).await {
        Ok(answered) => {
            let KnownNumbers { blocks, parts } = there.into_inner();
            free_numbers(&mut session, &blocks).await;
            if answered.is_err() {
                free_numbers(&mut session, &parts).await;
            }
            let sent = session.link.sender.bytes_sent().saturating_sub(before);
            (Ok(UsedSession { session, sent }), answered)
        }
        Err(why) => {
            let lost = LostConnection { name: session.name, why: why.clone() };
            (Err(lost), Err(Refusal { why, is_apart: false }))
        }
    }
}

async fn exchange(
    session: &mut Session,
    questions: Vec<QuestionRound>,
    there: &RefCell<KnownNumbers>,
) -> Result<Answered, String> {
    let is_silent_link = session.link.shares_memory;
    let (sender, receiver) = (&mut *session.link.sender, &mut *session.link.receiver);
    let silence = silence(receiver.arriving(), sender.send_progress(), is_silent_link);
    let expected = questions.iter().flat_map(|round| &round.questions).map(ComingAnswer::of).collect();
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
    questions: Vec<QuestionRound>,
    there: &RefCell<KnownNumbers>,
    mut heard: watch::Receiver<Heard>,
) -> Result<(), String> {
    let text = |e: LinkError| e.to_string();
    let (mut asked, mut blocks): (usize, usize) = (0, 0);
    // Blocks that are there, each with the number of questions up to its last.
    let mut done_with: Vec<(u64, usize)> = Vec::new();
    for QuestionRound { blocks: new, questions, waits } in questions {
        let ahead = |asked: usize| (asked + 1).saturating_sub(QUESTIONS_AHEAD);
        let before = if waits { asked } else { ahead(asked) };
        if !reach(sender, &mut heard, |heard| heard.answers >= before).await? {
            return Ok(());
        }
        let answers = heard.borrow().answers;
        for (number, _) in done_with.extract_if(.., |(_, last)| *last <= answers) {
            there.borrow_mut().blocks.retain(|one| *one != number);
            let free = Frame::new(Kind::Free.code(), encode_number(number), Body::Empty);
            sender.send(free).await.map_err(text)?;
        }
        for block in new {
            there.borrow_mut().blocks.push(block.number());
            blocks += 1;
            done_with.push((block.number(), asked + questions.len()));
            match block {
                TravellingBlock::Put(part) => {
                    send_elements(sender, &part, &|| heard.borrow().has_refused).await?;
                }
                TravellingBlock::Fetch(fetch) => {
                    let fetch = Frame::new(Kind::Fetch.code(), fetch.encode(), Body::Empty);
                    sender.send(fetch).await.map_err(text)?;
                }
            }
        }
        for question in questions {
            let before = ahead(asked);
            if !reach(sender, &mut heard, |heard| heard.answers >= before && heard.blocks >= blocks).await? {
                return Ok(());
            }
            if let Question::Make(MakeHead { array, step: None, .. }) = &question {
                there.borrow_mut().parts.push(*array);
            }
            sender.send(question.frame()).await.map_err(text)?;
            asked += 1;
        }
    }
    reach(sender, &mut heard, |heard| heard.answers >= asked).await.map(drop)
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
    mut coming: Vec<ComingAnswer>,
    tell: watch::Sender<Heard>,
) -> Result<Answered, String> {
    let (mut answers, mut is_apart) = (Vec::new(), false);
    while !coming.is_empty() {
        let arrived = receiver.receive(&mut AnswerPlacer).await.map_err(|e| e.to_string())?;
        match Kind::from_code(arrived.kind).map_err(|e| e.0)? {
            Kind::Reduced => {
                let head = ReducedHead::decode(&arrived.head).map_err(|e| e.0)?;
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
                    tell.send_modify(|heard| heard.answers += 1);
                }
            }
            Kind::Placed => {
                let PlacedHead { array, outcome } = PlacedHead::decode(&arrived.head).map_err(|e| e.0)?;
                let is_step = |asked: &ComingAnswer| asked.number == array && asked.reduced.is_none();
                match (outcome, coming.iter().position(is_step)) {
                    (PutOutcome::Held { digest, .. }, Some(at)) => {
                        answers.push(Answer::Made(digest));
                        coming.swap_remove(at);
                        tell.send_modify(|heard| heard.answers += 1);
                    }
                    (PutOutcome::Held { .. }, None) => tell.send_modify(|heard| heard.blocks += 1),
                    (PutOutcome::Refused(why), _) => {
                        tell.send_modify(|heard| heard.has_refused = true);
                        return Ok(Err(Refusal { why, is_apart }));
                    }
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
