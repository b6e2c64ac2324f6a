//! A client's conversation with one machine: a part to put, or questions.
//!
//! Place in the flow: `machines.rs` has one for each machine with a task, and lets one of them send or hear at a time.
//!
//! Invariants: what is sent, and when, is decided by `Asking`. Answers to earlier conversations are not heard.
//!
//! Deliberately absent: the machine (`machine.rs`).

use super::matrix::{ArrayMatrix, row_pieces};
use super::world::{ArrayWorld, FromMachine, PutRows, ToMachine};
use bramble_arrays::{
    Answer, Asking, HeldMeaning, MachineTask, NextMessage, PartToPut, Question, QuestionMessage, Refusal,
    TaskOutcome,
};
use bramble_matrix::{Digest128, MatrixInfo, Rect};
use std::collections::{BTreeMap, VecDeque};

/// Most pieces in which a part is sent.
const PIECES_MAX: u64 = 3;

/// A part on its way.
struct PiecesToSend {
    part: PartToPut<ArrayMatrix>,
    pieces: VecDeque<Rect>,
    is_block: bool,
}

/// The questions to a machine.
struct QuestionsToAsk {
    asking: Asking<ArrayMatrix>,
    /// The questions, by number, that have no answer.
    open: BTreeMap<u64, Question>,
    answers: Vec<Answer>,
    refusal: Option<String>,
    sending: Option<PiecesToSend>,
}

/// What a client does next.
enum NextFrame {
    Send(ToMachine),
    Wait,
    Over,
}

enum TalkTask {
    Put(PiecesToSend),
    Ask(Box<QuestionsToAsk>),
}

/// A conversation.
pub(super) struct MachineTalk {
    /// The machine's number in the operation.
    pub(super) machine: usize,
    pub(super) connection: u64,
    task: TalkTask,
    may_send: bool,
}

impl PiecesToSend {
    fn new(part: PartToPut<ArrayMatrix>, is_block: bool, world: &mut ArrayWorld) -> Self {
        let count = if part.source.is_generated() { 1 } else { 1 + world.random.below(PIECES_MAX) };
        let pieces = row_pieces(part.rect, count).into();
        Self { part, pieces, is_block }
    }

    /// The next piece, with the elements that the source has now.
    fn next(&mut self) -> Option<ToMachine> {
        let piece = self.pieces.pop_front()?;
        let PartToPut { source, rect, number } = &self.part;
        let elements = source.read(piece);
        let (dtype, is_generated) = (source.dtype(), source.is_generated());
        let head = PutRows { number: *number, part: *rect, dtype, is_block: self.is_block, is_generated };
        Some(ToMachine::Put { head, piece, elements })
    }
}

impl MachineTalk {
    /// A conversation that begins.
    pub(super) fn new(
        (machine, connection): (usize, u64),
        task: MachineTask<ArrayMatrix>,
        world: &mut ArrayWorld,
    ) -> Self {
        let task = match task {
            MachineTask::Put(part) => TalkTask::Put(PiecesToSend::new(part, false, world)),
            MachineTask::Ask(rounds) => TalkTask::Ask(Box::new(QuestionsToAsk {
                asking: Asking::new(rounds),
                open: BTreeMap::new(),
                answers: Vec::new(),
                refusal: None,
                sending: None,
            })),
        };
        Self { machine, connection, task, may_send: true }
    }

    /// Whether the client may have something to send.
    pub(super) fn may_send(&self) -> bool {
        self.may_send
    }

    /// The client sends one message, or notices that there is none; the outcome, if all is over.
    pub(super) fn send(&mut self, world: &mut ArrayWorld) -> Option<TaskOutcome> {
        let message = match &mut self.task {
            TalkTask::Put(sending) => {
                let message = sending.next();
                self.may_send = !sending.pieces.is_empty();
                message
            }
            TalkTask::Ask(asked) => match asked.next_message(world) {
                NextFrame::Send(message) => Some(message),
                NextFrame::Wait => {
                    self.may_send = false;
                    None
                }
                NextFrame::Over => return Some(asked.outcome()),
            },
        };
        if let (Some(message), Some(store)) = (message, world.stores.get_mut(&self.connection)) {
            store.towards.push_back(message);
        }
        None
    }

    /// The client hears an answer; the outcome, if all is over.
    pub(super) fn hear(&mut self, answer: FromMachine) -> Option<TaskOutcome> {
        match &mut self.task {
            TalkTask::Put(sending) => match answer {
                FromMachine::Held(number, digest) if number == sending.part.number => {
                    assert!(sending.pieces.is_empty(), "violation: a part is held before it is sent");
                    Some(sending.held(digest))
                }
                FromMachine::Refused(number, why, is_apart) if number == sending.part.number => {
                    Some(TaskOutcome::Refused(Refusal { why, is_apart, answers: Vec::new() }))
                }
                _ => None,
            },
            TalkTask::Ask(asked) => {
                asked.hear(answer);
                self.may_send = true;
                None
            }
        }
    }

    /// Numbers that are freed after the conversation.
    pub(super) fn left(self) -> Vec<u64> {
        match self.task {
            TalkTask::Put(_) => Vec::new(),
            TalkTask::Ask(asked) => asked.asking.left(),
        }
    }
}

impl PiecesToSend {
    /// The part is held: its digest, and that of the source as it is now.
    fn held(&self, digest: Digest128) -> TaskOutcome {
        let PartToPut { source, rect, .. } = &self.part;
        let own = || super::matrix::digest_of(rect.shape(), &source.read(*rect));
        TaskOutcome::Held { digest, own: Ok((!source.is_generated()).then(own)) }
    }
}

impl QuestionsToAsk {
    fn next_message(&mut self, world: &mut ArrayWorld) -> NextFrame {
        if let Some(message) =
            self.sending.as_mut().filter(|_| !self.asking.has_refused()).and_then(PiecesToSend::next)
        {
            return NextFrame::Send(message);
        }
        self.sending = None;
        match self.asking.next_message() {
            NextMessage::Wait => NextFrame::Wait,
            NextMessage::Over => NextFrame::Over,
            NextMessage::Send(QuestionMessage::Put(part)) => {
                let mut sending = PiecesToSend::new(part, true, world);
                let first = sending.next();
                self.sending = Some(sending);
                first.map_or(NextFrame::Wait, NextFrame::Send)
            }
            NextMessage::Send(QuestionMessage::Fetch(fetch)) => NextFrame::Send(ToMachine::Fetch(fetch)),
            NextMessage::Send(QuestionMessage::Ask(question)) => {
                self.open.insert(question.number(), question);
                NextFrame::Send(ToMachine::Ask(question))
            }
            NextMessage::Send(QuestionMessage::Free(number)) => NextFrame::Send(ToMachine::Free(number)),
        }
    }

    fn hear(&mut self, answer: FromMachine) {
        if self.asking.is_over() {
            return;
        }
        match answer {
            FromMachine::Held(number, digest) => {
                if self.asking.held(number) == HeldMeaning::Answer {
                    self.open.remove(&number);
                    self.answers.push(Answer::Made(number, digest));
                }
            }
            FromMachine::Reduced(number, bytes) => {
                if let Some(Question::Reduce(head, expected)) = self.open.remove(&number) {
                    let count = bytes.len() as u64;
                    assert_eq!(
                        count, expected,
                        "violation: an answer of {count} bytes instead of {expected}"
                    );
                    self.answers.push(Answer::Reduced(head.reduction, head.rect, bytes));
                    self.asking.answered(number);
                }
            }
            FromMachine::Refused(number, why, is_apart) => {
                if self.asking.refused(number, is_apart) {
                    self.refusal = Some(why);
                }
            }
            FromMachine::Elements(..) => {}
        }
    }

    fn outcome(&mut self) -> TaskOutcome {
        let answers = std::mem::take(&mut self.answers);
        match self.refusal.take() {
            Some(why) => TaskOutcome::Refused(Refusal { why, is_apart: self.asking.keeps_parts(), answers }),
            None => TaskOutcome::Answered(answers),
        }
    }
}
