//! Pure: a byte-conserving machine between one file range and one socket.
//!
//! | step | caller does | then feeds |
//! |---|---|---|
//! | `Move { offset, len }` | asks an engine to move up to `len` bytes | `moved`, `full` |
//! | `Wait` | waits until the socket has room | `room` |
//! | `Done` | nothing: every byte of the range was taken by the socket exactly once | - |
//!
//! For a splice, what went into the pipe and what came out are fed together, and the difference is thrown away and read
//! again: a file is a free source. Invariants, asserted after every feed: `drained <= filled <= asked` and
//! `start <= at <= end`; `at` moves only by what the socket took.

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Move up to `len` bytes of the file from `offset`.
    Move {
        /// Position in the file.
        offset: u64,
        /// Bytes, at least 1.
        len: u32,
    },
    /// The socket is full: wait for room, holding nothing.
    Wait,
    /// The range is out.
    Done,
}

/// Smallest quantum: below the default pipe a call costs more than its bytes.
const QUANTUM_MIN: u32 = 64 << 10;

/// The machine.
#[derive(Clone, Copy, Debug)]
pub struct Pump {
    at: u64,
    end: u64,
    quantum: u32,
    most: u32,
    full: bool,
}

impl Pump {
    /// A pump over `range`, moving at most `most` bytes a step.
    pub fn new(range: std::ops::Range<u64>, most: u32) -> Self {
        let most = most.max(QUANTUM_MIN);
        Self { at: range.start, end: range.end.max(range.start), quantum: most, most, full: false }
    }

    /// What to do next.
    pub fn next(&self) -> Step {
        if self.at >= self.end {
            Step::Done
        } else if self.full {
            Step::Wait
        } else {
            Step::Move { offset: self.at, len: u32::try_from(self.left()).unwrap_or(u32::MAX).min(self.quantum) }
        }
    }

    /// Bytes not yet taken by the socket.
    pub fn left(&self) -> u64 {
        self.end - self.at
    }

    /// The socket has room again.
    pub fn room(&mut self) {
        self.full = false;
    }

    /// The socket took `moved` of `asked` bytes; fewer means that it is full now.
    pub fn moved(&mut self, asked: u32, moved: u32) {
        self.through(asked, asked, moved);
    }

    /// The socket took nothing.
    pub fn full(&mut self) {
        self.full = true;
        self.quantum = (self.quantum / 2).max(QUANTUM_MIN);
    }

    /// A splice: `filled` of `asked` bytes went into the pipe, `drained` of them into the socket. A short fill is
    /// normal and says nothing of the socket; a short drain says that it is full.
    pub fn through(&mut self, asked: u32, filled: u32, drained: u32) {
        assert!(drained <= filled && filled <= asked, "{drained} <= {filled} <= {asked}");
        assert!(u64::from(drained) <= self.left(), "the socket took more than the range has");
        self.at += u64::from(drained);
        if drained < filled {
            // The next try asks for about what a socket of this speed takes, so that little is read twice.
            self.full = true;
            self.quantum = drained.next_power_of_two().clamp(QUANTUM_MIN, self.most);
        } else if drained == asked {
            self.quantum = self.quantum.saturating_mul(2).min(self.most);
        }
        assert!(self.at <= self.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum World {
        Takes(u32),
        Full,
        ShortFill(u32, u32),
        Cancelled,
    }

    fn worlds() -> impl Strategy<Value = Vec<World>> {
        proptest::collection::vec(
            prop_oneof![
                (1u32..3_000_000).prop_map(World::Takes),
                Just(World::Full),
                (1u32..100_000, 0u32..100_000).prop_map(|(fill, drain)| World::ShortFill(fill, drain)),
                Just(World::Cancelled),
            ],
            1..200,
        )
    }

    proptest! {
        /// Any order of short, zero, EAGAIN and cancelled outcomes yields exactly the range, in order, once.
        #[test]
        fn exactly_the_range_once(start in 0u64..10_000_000_000, len in 0u64..50_000_000, worlds in worlds()) {
            let mut pump = Pump::new(start..start + len, 1 << 20);
            let mut sent = Vec::new();
            let mut world = worlds.iter().cycle();
            for _ in 0..10_000_000u32 {
                match pump.next() {
                    Step::Done => break,
                    Step::Wait => pump.room(),
                    Step::Move { offset, len } => {
                        prop_assert!(len > 0 && offset + u64::from(len) <= start + 50_000_000);
                        // After a whole cycle of nothing but refusals the world gives in, so that the test ends.
                        match world.next().expect("cycle") {
                            World::Takes(most) => {
                                let moved = len.min(*most);
                                sent.push((offset, moved));
                                pump.moved(len, moved);
                            }
                            World::Full | World::Cancelled if worlds.iter().any(|w| matches!(w, World::Takes(_))) => pump.full(),
                            World::ShortFill(fill, drain) if worlds.iter().any(|w| matches!(w, World::Takes(_))) => {
                                let filled = len.min(*fill);
                                let drained = filled.min(*drain);
                                sent.push((offset, drained));
                                pump.through(len, filled, drained);
                            }
                            _ => {
                                sent.push((offset, len));
                                pump.moved(len, len);
                            }
                        }
                    }
                }
            }
            prop_assert_eq!(pump.next(), Step::Done);
            let mut at = start;
            for (offset, moved) in sent {
                prop_assert_eq!(offset, at);
                at += u64::from(moved);
            }
            prop_assert_eq!(at, start + len);
        }
    }

    #[test]
    fn an_empty_range_is_done_at_once() {
        assert_eq!(Pump::new(7..7, 1 << 20).next(), Step::Done);
    }

    #[test]
    fn a_short_fill_is_not_a_full_socket() {
        let mut pump = Pump::new(0..1 << 20, 1 << 20);
        pump.through(1 << 20, 4096, 4096);
        assert!(matches!(pump.next(), Step::Move { offset: 4096, .. }));
    }

    #[test]
    fn a_short_drain_waits_and_reads_again_from_what_the_socket_took() {
        let mut pump = Pump::new(0..1 << 20, 1 << 20);
        pump.through(1 << 20, 1 << 20, 100_000);
        assert_eq!(pump.next(), Step::Wait);
        pump.room();
        assert!(matches!(pump.next(), Step::Move { offset: 100_000, len: 131_072 }));
    }

    #[test]
    #[should_panic(expected = "more than the range has")]
    fn a_socket_that_takes_too_much_is_a_broken_invariant() {
        Pump::new(0..10, 1 << 20).moved(1000, 1000);
    }
}
