//! The operation table: fixed capacity, one slot per operation, its life as a phase table.
//!
//! | phase | what holds | leaves by |
//! |---|---|---|
//! | InFlight | the kernel may touch what the op owns | a settling CQE → Resolved, Notifying, or free |
//! | Notifying | the result is out, the kernel still reads the memory (zero-copy) | NOTIF → free, or Resolved if not yet taken |
//! | Resolved | only the result waits for its owner | take → free; drop → dispose, free |
//! | Orphaned | in flight, nobody waits | the last CQE → dispose, free |
//!
//! Invariant (R1, R2): an `Op` is neither moved nor dropped while its phase is InFlight, Notifying or Orphaned.

use super::buffers::RecvLease;
use super::completion::{Cqe, Outcome};
use super::op::Op;
use super::token::{GENERATIONS, Part, Token};
use super::{Event, TaskId};
use crate::clock::Nanos;
use slab::Slab;

/// Who wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A task that awaits one result.
    Task(TaskId),
    /// The shard's event loop, under a tag.
    Stream(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    InFlight,
    Notifying,
    Resolved,
    Orphaned,
}

#[derive(Debug)]
struct Slot {
    op: Op,
    generation: u32,
    phase: Phase,
    owner: Owner,
    result: Option<Outcome>,
    filled: Option<Outcome>,
    resolved_at: Nanos,
    taken: bool,
}

/// What an awaited operation came to.
#[derive(Debug)]
pub struct Completion {
    /// Bytes moved, a descriptor, or events; for a chain, what the socket took.
    pub result: Outcome,
    /// For a chain: what the pipe took, where that differed from what was asked.
    pub filled: Option<Outcome>,
    /// The operation with everything it owns; `None` while the kernel still reads it (zero-copy).
    pub op: Option<Op>,
}

/// What the ring must do after a completion.
#[derive(Debug)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// Run this task.
    Wake(TaskId),
    /// Queue this event.
    Event(Event),
    /// Both.
    WakeAnd(TaskId, Event),
}

/// The table.
#[derive(Debug)]
pub struct Table {
    slots: Slab<Slot>,
    capacity: usize,
    generation: u32,
}

impl Table {
    /// A table of `capacity` slots, allocated now and never grown.
    pub fn new(capacity: usize) -> Self {
        Self { slots: Slab::with_capacity(capacity), capacity, generation: 0 }
    }

    /// Operations in it.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether the next insert would fail.
    pub fn is_full(&self) -> bool {
        self.slots.len() >= self.capacity
    }

    /// Puts an operation in its slot for good, or gives it back if there is none free (R2).
    pub fn insert(&mut self, op: Op, owner: Owner) -> Result<Token, Op> {
        if self.is_full() {
            return Err(op);
        }
        self.generation = (self.generation + 1) % GENERATIONS;
        let generation = self.generation;
        let index = self.slots.insert(Slot {
            op,
            generation,
            phase: Phase::InFlight,
            owner,
            result: None,
            filled: None,
            resolved_at: Nanos(0),
            taken: false,
        });
        Ok(Token { index: index as u32, generation })
    }

    fn slot(&self, token: Token) -> Option<&Slot> {
        self.slots.get(token.index as usize).filter(|slot| slot.generation == token.generation)
    }

    fn slot_mut(&mut self, token: Token) -> Option<&mut Slot> {
        self.slots.get_mut(token.index as usize).filter(|slot| slot.generation == token.generation)
    }

    /// The operation at its final address.
    pub fn op(&self, token: Token) -> &Op {
        &self.slot(token).expect("a token just inserted is live").op
    }

    /// Whether the kernel may still act for this token.
    pub fn is_live(&self, token: Token) -> bool {
        self.slot(token).is_some_and(|slot| slot.phase == Phase::InFlight)
    }

    /// Credits one completion (R4: generation, NOTIF, MORE, sign).
    pub fn complete(&mut self, cqe: &Cqe, buffer: Option<RecvLease>, now: Nanos) -> Effect {
        let Some((token, part)) = Token::decode(cqe.user_data) else { return Effect::Nothing };
        if part == Part::Cancel {
            return Effect::Nothing;
        }
        let index = token.index as usize;
        let Some(slot) = self.slot_mut(token) else { return Effect::Nothing };
        if cqe.is_notification() {
            return self.notified(index, cqe, now);
        }
        match part {
            Part::Fill => {
                slot.filled = Some(cqe.outcome());
                return Effect::Nothing;
            }
            // Only a failed poll posts a completion, and then the rest of its chain stays silent.
            Part::Poll | Part::Main => {}
            Part::Cancel => return Effect::Nothing,
        }
        let result = cqe.outcome();
        if let Owner::Stream(tag) = slot.owner {
            let more = cqe.has_more();
            if slot.phase == Phase::Orphaned {
                slot.op.dispose(result);
            }
            let orphaned = slot.phase == Phase::Orphaned;
            if !more {
                self.slots.remove(index);
            }
            return if orphaned { Effect::Nothing } else { Effect::Event(Event::Stream { tag, result, buffer, more }) };
        }
        if cqe.has_more() {
            // A zero-copy send's result: the memory stays with the kernel until the notification.
            slot.result = Some(result);
            slot.resolved_at = now;
            return match (slot.phase, slot.owner) {
                (Phase::InFlight, Owner::Task(task)) => {
                    slot.phase = Phase::Notifying;
                    Effect::Wake(task)
                }
                _ => Effect::Nothing,
            };
        }
        match (slot.phase, slot.owner) {
            (Phase::InFlight, Owner::Task(task)) => {
                slot.result = Some(result);
                slot.phase = Phase::Resolved;
                Effect::Wake(task)
            }
            _ => {
                let slot = self.slots.remove(index);
                slot.op.dispose(result);
                Effect::Nothing
            }
        }
    }

    fn notified(&mut self, index: usize, cqe: &Cqe, now: Nanos) -> Effect {
        let slot = &mut self.slots[index];
        let bytes = slot.result.and_then(Result::ok).unwrap_or(0);
        let (route, reports) = match &slot.op {
            Op::SendZc { route, reports, .. } => (*route, *reports),
            _ => (0, false),
        };
        let task = match (slot.phase, slot.owner) {
            (Phase::Orphaned, _) => None,
            (_, Owner::Task(task)) => Some(task),
            _ => None,
        };
        let event = Event::Notified {
            route,
            task,
            bytes,
            copied: reports.then(|| cqe.copied()),
            waited: now.since(slot.resolved_at),
        };
        if slot.phase == Phase::Notifying && !slot.taken {
            // The owner has not looked yet: keep the result for it, the memory is free.
            slot.phase = Phase::Resolved;
        } else {
            self.slots.remove(index);
        }
        Effect::Event(event)
    }

    /// Takes the result of an awaited operation, if it has one.
    pub fn take(&mut self, token: Token) -> Option<Completion> {
        let index = token.index as usize;
        let slot = self.slot_mut(token)?;
        match slot.phase {
            Phase::Resolved => {
                let slot = self.slots.remove(index);
                Some(Completion {
                    result: slot.result.expect("a resolved slot has a result"),
                    filled: slot.filled,
                    op: Some(slot.op),
                })
            }
            Phase::Notifying if !slot.taken => {
                slot.taken = true;
                Some(Completion { result: slot.result.expect("a notifying slot has a result"), filled: None, op: None })
            }
            _ => None,
        }
    }

    /// The owner is gone (R3); true if the kernel must be asked to cancel.
    pub fn orphan(&mut self, token: Token) -> bool {
        let index = token.index as usize;
        let Some(slot) = self.slot_mut(token) else { return false };
        match slot.phase {
            Phase::InFlight => {
                slot.phase = Phase::Orphaned;
                true
            }
            Phase::Resolved => {
                let slot = self.slots.remove(index);
                slot.op.dispose(slot.result.expect("a resolved slot has a result"));
                false
            }
            Phase::Notifying => {
                // Nothing to cancel: the bytes are sent, only the notification is outstanding.
                slot.taken = true;
                false
            }
            Phase::Orphaned => false,
        }
    }

    /// Orphans everything; the tokens of what must be cancelled.
    pub fn orphan_all(&mut self) -> Vec<Token> {
        let tokens: Vec<Token> =
            self.slots.iter().map(|(index, slot)| Token { index: index as u32, generation: slot.generation }).collect();
        tokens.into_iter().filter(|token| self.orphan(*token)).collect()
    }

    /// Gives up what is left without freeing it (R6); how many operations that was.
    pub fn leak(&mut self) -> usize {
        let slots = std::mem::replace(&mut self.slots, Slab::new());
        let left = slots.len();
        std::mem::forget(slots);
        left
    }
}
