//! The questions to one machine, and in which order they travel with the blocks that they need.
//!
//! Place in the flow: `MachineTask::Ask` has the rounds; the shell sends what `Asking` names next, and tells it what it hears.
//!
//! Invariants: blocks of the next round travel while the machine computes with those before; it holds no more than those of two
//! rounds. A question is sent when its blocks are there. What a machine says of an earlier conversation counts for nothing. All
//! blocks are freed at the end; after a refusal also the parts that were to be made, unless a link between machines has ended:
//! then the steps under way are awaited and the parts stay, so that the making can go on.
//!
//! Deliberately absent: frames.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::{Digest128, Rect, Reduction};
use bramble_wire::limits::{MAKINGS_MAX, REDUCTIONS_MAX};
use bramble_wire::message::{FetchHead, MakeHead, ReduceHead};

/// Questions that a machine may have at a time.
const QUESTIONS_AHEAD: usize = 2;

const _: () = assert!(QUESTIONS_AHEAD <= REDUCTIONS_MAX && QUESTIONS_AHEAD <= MAKINGS_MAX);

/// A part, or a block of an operand, that a machine gets from this process.
#[derive(Clone)]
pub struct PartToPut<X> {
    /// The matrix with its elements.
    pub source: X,
    /// The rectangle of the matrix.
    pub rect: Rect,
    /// Its number at the machine.
    pub number: u64,
}

/// One question.
#[derive(Clone, Copy, Debug)]
pub enum Question {
    /// A reduction, and the bytes of its answer.
    Reduce(ReduceHead, u64),
    /// A step that makes a part of an array.
    Make(MakeHead),
}

/// A block of an operand that the machine does not hold.
#[derive(Clone)]
pub enum TravellingBlock<X> {
    /// From this process.
    Put(PartToPut<X>),
    /// From another machine.
    Fetch(FetchHead),
}

/// Blocks, and the questions that need them.
#[derive(Clone)]
pub struct QuestionRound<X> {
    /// The blocks.
    pub blocks: Vec<TravellingBlock<X>>,
    /// The questions.
    pub questions: Vec<Question>,
    /// Whether all earlier questions have to be answered first.
    pub waits: bool,
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The bytes of a reduction, by its number, of a rectangle.
    Reduced(u8, Rect, Vec<u8>),
    /// The step with this number is done; of the last one of a part, its digest.
    Made(u64, Digest128),
}

/// Why a machine refuses.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The machine's words.
    pub why: String,
    /// Whether its link with another machine has ended before. Then the parts that it was making stay.
    pub is_apart: bool,
    /// Its answers before the refusal.
    pub answers: Vec<Answer>,
}

/// A message to a machine.
pub enum QuestionMessage<X> {
    /// A block from this process.
    Put(PartToPut<X>),
    /// The machine is to get a block from another machine.
    Fetch(FetchHead),
    /// A question.
    Ask(Question),
    /// A block is not needed any more.
    Free(u64),
}

/// The meaning of a machine's message that it holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldMeaning {
    /// A question is answered.
    Answer,
    /// A block is there.
    Block,
    /// Nothing: it belongs to an earlier conversation.
    Late,
}

/// What follows.
pub enum NextMessage<X> {
    /// This is sent now.
    Send(QuestionMessage<X>),
    /// Something has to be heard first.
    Wait,
    /// All is answered, or the machine has refused.
    Over,
}

enum Item<X> {
    Round {
        waits: bool,
    },
    /// With the number of questions up to the last that needs it.
    Block(TravellingBlock<X>, usize),
    Question(Question),
}

/// The conversation with one machine.
pub struct Asking<X> {
    items: VecDeque<Item<X>>,
    /// Questions without an answer.
    open: BTreeSet<u64>,
    asked: usize,
    answered: usize,
    /// Blocks that were sent, and those that the machine holds as a whole.
    sent_blocks: usize,
    held_blocks: usize,
    has_refused: bool,
    /// Whether the parts stay after the refusal.
    keeps_parts: bool,
    /// Blocks that the machine may hold, each with the number of questions up to the last that needs it.
    blocks: Vec<(u64, usize)>,
    /// Parts that it makes.
    parts: Vec<u64>,
    freed: VecDeque<u64>,
}

impl Answer {
    /// The bytes of that reduction of that rectangle, if this is it.
    pub fn of(&self, wanted: Reduction, of: Rect) -> Option<&[u8]> {
        match self {
            Self::Reduced(code, rect, bytes) if (*code, *rect) == (wanted.code().0, of) => Some(bytes),
            _ => None,
        }
    }
}

impl Question {
    /// Its number.
    pub fn number(&self) -> u64 {
        match self {
            Self::Reduce(head, _) => head.number,
            Self::Make(head) => head.number,
        }
    }
}

impl<X> TravellingBlock<X> {
    fn number(&self) -> u64 {
        match self {
            Self::Put(part) => part.number,
            Self::Fetch(fetch) => fetch.array,
        }
    }
}

impl<X> Asking<X> {
    /// A conversation that begins.
    pub fn new(rounds: Vec<QuestionRound<X>>) -> Self {
        let (mut items, mut questions) = (VecDeque::new(), 0);
        for round in rounds {
            questions += round.questions.len();
            items.push_back(Item::Round { waits: round.waits });
            items.extend(round.blocks.into_iter().map(|block| Item::Block(block, questions)));
            items.extend(round.questions.into_iter().map(Item::Question));
        }
        Self {
            items,
            open: BTreeSet::new(),
            asked: 0,
            answered: 0,
            sent_blocks: 0,
            held_blocks: 0,
            has_refused: false,
            keeps_parts: false,
            blocks: Vec::new(),
            parts: Vec::new(),
            freed: VecDeque::new(),
        }
    }

    /// The next message.
    pub fn next_message(&mut self) -> NextMessage<X> {
        if self.has_refused {
            return if self.is_over() { NextMessage::Over } else { NextMessage::Wait };
        }
        if let Some(number) = self.freed.pop_front() {
            return NextMessage::Send(QuestionMessage::Free(number));
        }
        let ahead = (self.asked + 1).saturating_sub(QUESTIONS_AHEAD);
        let may_go = match self.items.front() {
            Some(Item::Round { waits: true }) | None => self.answered >= self.asked,
            Some(Item::Round { waits: false }) => self.answered >= ahead,
            Some(Item::Block(..)) => true,
            Some(Item::Question(_)) => self.answered >= ahead && self.held_blocks >= self.sent_blocks,
        };
        if !may_go {
            return NextMessage::Wait;
        }
        match self.items.pop_front() {
            None => NextMessage::Over,
            Some(Item::Round { .. }) => {
                let answered = self.answered;
                let done = self.blocks.extract_if(.., |(_, last)| *last <= answered);
                self.freed.extend(done.map(|(number, _)| number));
                self.next_message()
            }
            Some(Item::Block(block, last)) => {
                self.blocks.push((block.number(), last));
                self.sent_blocks += 1;
                NextMessage::Send(match block {
                    TravellingBlock::Put(part) => QuestionMessage::Put(part),
                    TravellingBlock::Fetch(fetch) => QuestionMessage::Fetch(fetch),
                })
            }
            Some(Item::Question(question)) => {
                if let Question::Make(MakeHead { array, step: None, .. }) = &question {
                    self.parts.push(*array);
                }
                self.asked += 1;
                self.open.insert(question.number());
                NextMessage::Send(QuestionMessage::Ask(question))
            }
        }
    }

    /// A question was answered.
    pub fn answered(&mut self, number: u64) {
        self.answered += usize::from(self.open.remove(&number));
    }

    /// The machine says that it holds the part or block with this number, or that it has answered the question with it.
    pub fn held(&mut self, number: u64) -> HeldMeaning {
        if self.open.contains(&number) {
            self.answered(number);
            return HeldMeaning::Answer;
        }
        if !self.has_block(number) {
            return HeldMeaning::Late;
        }
        self.held_blocks += 1;
        HeldMeaning::Block
    }

    /// The machine refuses the block or question with this number: no message follows. `is_apart`: its link with another machine
    /// has ended. False if that belongs to an earlier conversation: a machine whose link has ended refuses each block that it
    /// waits for, and those of one conversation are refused in the next.
    pub fn refused(&mut self, number: u64, is_apart: bool) -> bool {
        let is_question = self.open.remove(&number);
        if !is_question && !self.has_block(number) {
            return false;
        }
        // Steps under way have all their blocks, so they will be answered; steps of a refused part never.
        self.keeps_parts = is_apart && !is_question && (self.keeps_parts || !self.has_refused);
        self.has_refused = true;
        true
    }

    /// Whether nothing more has to be heard after a refusal.
    pub fn is_over(&self) -> bool {
        self.has_refused && (!self.keeps_parts || self.open.is_empty())
    }

    /// Whether the parts that were to be made stay, although the machine has refused.
    pub fn keeps_parts(&self) -> bool {
        self.keeps_parts
    }

    fn has_block(&self, number: u64) -> bool {
        self.blocks.iter().any(|(block, _)| *block == number)
    }

    /// Whether the machine has refused.
    pub fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// The numbers to free at the end.
    pub fn left(self) -> Vec<u64> {
        let blocks = self.freed.into_iter().chain(self.blocks.into_iter().map(|(number, _)| number));
        let parts = self.parts.into_iter().filter(|_| self.has_refused && !self.keeps_parts);
        blocks.chain(parts).collect()
    }
}
