//! Bodies in pieces: dropping a request body that nobody wants, so that the next request on the connection can be
//! found, and telling the data of a chunked body from its framing, in both directions of a relay.
//!
//! Apart from framing because it has a memory: bytes come in pieces of any size. It keeps no byte of them. Imports only
//! the layer's own types.
//!
//! ```text
//!   phase                      feed(bytes)                      next
//!   Length(n), Data(n)         drops up to n                    Length: Done at 0; Data: DataCr at 0
//!   Size .. TrailerLf          judges one byte after another    as the grammar of RFC 9112 section 7.1 has it
//!   Done                       takes nothing                    Done
//!   Refused                    takes nothing                    Refused, for the same reason
//! ```
//!
//! Invariant: the machine moves per byte (or over a run of data bytes, which all mean the same), so every split of a
//! body gives the same answer and the same number of bytes consumed.

use std::ops::Range;

use super::framing::Framing;
use super::{Refusal, Status};

/// Bytes of chunk extensions in one body, all chunks together. Nobody sends any; without a bound one-byte chunks with
/// long extensions would be free work (CVE-2023-39326 was that).
pub const EXTENSION_BYTES_MAX: u32 = 4096;

/// Bytes of trailer fields in one body. They are dropped, so this is only as generous as a small head.
pub const TRAILER_BYTES_MAX: u32 = 8192;

/// The body is longer than we are willing to read and drop.
pub const BODY_TOO_LONG: Refusal = Refusal::new(Status::CONTENT_TOO_LARGE, "request body too long");

/// A body being dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BodySkip {
    phase: Phase,
    /// Data bytes that may still be announced.
    budget: u64,
    extension_bytes: u32,
    trailer_bytes: u32,
}

/// What one piece of the body did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skip {
    /// Bytes of the piece that belong to the body; the rest is the next request (once done) or was not judged.
    pub consumed: usize,
    /// Where the body stands.
    pub state: SkipState,
}

/// Where a body stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SkipState {
    /// The body goes on.
    More,
    /// The body has ended.
    Done,
    /// The body is refused; the connection must close.
    Refuse(Refusal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Length(u64),
    /// Chunk size so far and its number of digits.
    Size(u64, u8),
    /// An extension of the chunk whose size is known.
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// The first byte of a line after the last chunk.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    /// The LF of the empty line that ends the body.
    EndLf,
    Done,
    Refused(Refusal),
}

impl BodySkip {
    /// A body that ends as `framing` says, of at most `limit_bytes` bytes of content (413 above).
    pub fn new(framing: Framing, limit_bytes: u64) -> Self {
        let phase = match framing {
            Framing::None | Framing::Length(0) => Phase::Done,
            Framing::Length(length) if length > limit_bytes => Phase::Refused(BODY_TOO_LONG),
            Framing::Length(length) => Phase::Length(length),
            Framing::Chunked => Phase::Size(0, 0),
        };
        Self { phase, budget: limit_bytes, extension_bytes: 0, trailer_bytes: 0 }
    }

    /// Drops what belongs to the body at the start of `bytes`. An empty piece tells the state.
    pub fn feed(&mut self, bytes: &[u8]) -> Skip {
        let mut consumed = 0;
        while let Some(&byte) = bytes.get(consumed) {
            match self.phase {
                Phase::Done | Phase::Refused(_) => break,
                Phase::Length(left) => {
                    let (taken, left) = take(left, bytes.len() - consumed);
                    consumed += taken;
                    self.phase = if left == 0 { Phase::Done } else { Phase::Length(left) };
                }
                Phase::Data(left) => {
                    let (taken, left) = take(left, bytes.len() - consumed);
                    consumed += taken;
                    self.phase = if left == 0 { Phase::DataCr } else { Phase::Data(left) };
                }
                _ => match self.step(byte) {
                    Ok(phase) => {
                        self.phase = phase;
                        consumed += 1;
                    }
                    Err(refusal) => self.phase = Phase::Refused(refusal),
                },
            }
        }
        let state = match self.phase {
            Phase::Done => SkipState::Done,
            Phase::Refused(refusal) => SkipState::Refuse(refusal),
            _ => SkipState::More,
        };
        Skip { consumed, state }
    }

    /// One byte of the chunk grammar. Only CRLF ends a line here: a lone LF or CR is where parsers disagree.
    fn step(&mut self, byte: u8) -> Result<Phase, Refusal> {
        Ok(match (self.phase, byte) {
            (Phase::Size(size, digits), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                // 16 digits fill a u64; more, even zeros, have no honest use.
                if digits == 16 {
                    return Err(Refusal::bad("chunk size too long"));
                }
                Phase::Size(size << 4 | u64::from(hex(byte)), digits + 1)
            }
            (Phase::Size(_, 0), _) => return Err(Refusal::bad("chunk size missing")),
            (Phase::Size(size, _), b'\r' | b';') => {
                self.budget = self.budget.checked_sub(size).ok_or(BODY_TOO_LONG)?;
                if byte == b'\r' { Phase::SizeLf(size) } else { self.extension(size)? }
            }
            (Phase::Size(..), _) => return Err(Refusal::bad("malformed chunk size")),
            (Phase::Extension(size), b'\r') => Phase::SizeLf(size),
            (Phase::Extension(size), byte) if is_text(byte) => self.extension(size)?,
            (Phase::Extension(_), _) => return Err(Refusal::bad("malformed chunk extension")),
            (Phase::SizeLf(0), b'\n') => Phase::TrailerStart,
            (Phase::SizeLf(size), b'\n') => Phase::Data(size),
            (Phase::DataCr, b'\r') => Phase::DataLf,
            (Phase::DataLf, b'\n') => Phase::Size(0, 0),
            (Phase::TrailerStart, b'\r') => Phase::EndLf,
            (Phase::TrailerStart | Phase::TrailerName, byte) if is_token(byte) => self.trailer(Phase::TrailerName)?,
            (Phase::TrailerName, b':') => self.trailer(Phase::TrailerValue)?,
            (Phase::TrailerValue, b'\r') => self.trailer(Phase::TrailerLf)?,
            (Phase::TrailerValue, byte) if is_text(byte) => self.trailer(Phase::TrailerValue)?,
            (Phase::TrailerStart | Phase::TrailerName | Phase::TrailerValue, _) => {
                return Err(Refusal::bad("malformed trailer field"));
            }
            (Phase::TrailerLf, b'\n') => self.trailer(Phase::TrailerStart)?,
            (Phase::EndLf, b'\n') => Phase::Done,
            (Phase::SizeLf(_) | Phase::DataCr | Phase::DataLf | Phase::TrailerLf | Phase::EndLf, _) => {
                return Err(Refusal::bad("chunked body without CRLF where it belongs"));
            }
            // `feed` deals with these.
            (Phase::Length(_) | Phase::Data(_) | Phase::Done | Phase::Refused(_), _) => self.phase,
        })
    }

    fn extension(&mut self, size: u64) -> Result<Phase, Refusal> {
        self.extension_bytes += 1;
        if self.extension_bytes > EXTENSION_BYTES_MAX {
            return Err(Refusal::bad("chunk extensions too long"));
        }
        Ok(Phase::Extension(size))
    }

    fn trailer(&mut self, next: Phase) -> Result<Phase, Refusal> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(Refusal::new(Status::HEADER_FIELDS_TOO_LARGE, "trailer fields too long"));
        }
        Ok(next)
    }
}

/// A chunked body whose data is wanted: the same machine, stopping at each run of data. Trailers are judged and
/// dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkedBody(BodySkip);

/// What one call found in its input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fed {
    /// Bytes of the input that are done with, the run of data included. Feed the rest again, unless `done`.
    pub consumed: usize,
    /// A run of data within the input, never empty. It ends where `consumed` does.
    pub data: Option<Range<usize>>,
    /// The body has ended; what is behind `consumed` belongs to the next message.
    pub done: bool,
}

impl ChunkedBody {
    /// A body of any length; whoever takes the data counts it.
    #[allow(clippy::new_without_default)] // a body begins where a head ended, never by default
    pub fn new() -> Self {
        Self(BodySkip::new(Framing::Chunked, u64::MAX))
    }

    /// Reads `input` up to the end of its first run of data, or all of it. Call again with the rest until nothing is
    /// left or the body is done. An error stays: the place where the next message begins is lost.
    pub fn feed(&mut self, input: &[u8]) -> Result<Fed, Refusal> {
        let mut consumed = 0;
        while let Some(&byte) = input.get(consumed) {
            match self.0.phase {
                Phase::Data(left) => {
                    let (taken, _) = take(left, input.len() - consumed);
                    let start = consumed;
                    self.advance(taken as u64);
                    return Ok(Fed { consumed: start + taken, data: Some(start..start + taken), done: false });
                }
                Phase::Done => break,
                Phase::Refused(refusal) => return Err(refusal),
                _ => {}
            }
            match self.0.step(byte) {
                Ok(phase) => self.0.phase = phase,
                Err(refusal) => {
                    self.0.phase = Phase::Refused(refusal);
                    return Err(refusal);
                }
            }
            consumed += 1;
        }
        match self.0.phase {
            Phase::Refused(refusal) => Err(refusal),
            phase => Ok(Fed { consumed, data: None, done: phase == Phase::Done }),
        }
    }

    /// Data bytes of the current chunk that have not come yet: so many may be moved past this machine (by splice), and
    /// told to [`ChunkedBody::advance`].
    pub fn data_left(&self) -> u64 {
        if let Phase::Data(left) = self.0.phase { left } else { 0 }
    }

    /// Counts `moved` bytes of the current chunk's data that did not go through [`ChunkedBody::feed`].
    ///
    /// # Panics
    /// If they are more than [`ChunkedBody::data_left`]: framing would have been sent as data.
    pub fn advance(&mut self, moved: u64) {
        let left = self.data_left().checked_sub(moved).expect("no more than what is left of the chunk");
        if moved > 0 {
            self.0.phase = if left == 0 { Phase::DataCr } else { Phase::Data(left) };
        }
    }
}

/// What follows the data of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// What ends a chunked body: the last chunk and no trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends the line before the data of a chunk of `length` bytes, which is not zero: that would end the body.
pub fn write_chunk_head(out: &mut Vec<u8>, length: u64) {
    debug_assert_ne!(length, 0, "an empty chunk is the last one");
    let digits = (16 - length.leading_zeros() / 4).max(1);
    out.extend((0..digits).rev().map(|digit| b"0123456789abcdef"[(length >> (4 * digit)) as usize & 15]));
    out.extend_from_slice(b"\r\n");
}

/// How many of `available` bytes belong to `left`, and what is left then.
fn take(left: u64, available: usize) -> (usize, u64) {
    match usize::try_from(left) {
        Ok(left) if left <= available => (left, 0),
        _ => (available, left - available as u64),
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// HTAB, SP, VCHAR, obs-text: what a field value or an extension may hold.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// tchar of RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The end of the body within `bytes` (or where it was refused) and the state there.
    fn skip(framing: Framing, limit: u64, pieces: &[&[u8]]) -> (usize, SkipState) {
        let mut body = BodySkip::new(framing, limit);
        let mut total = 0;
        for piece in pieces {
            let Skip { consumed, state } = body.feed(piece);
            total += consumed;
            if state != SkipState::More {
                assert_eq!(body.feed(b"GET"), Skip { consumed: 0, state }, "an end is an end");
                return (total, state);
            }
            assert_eq!(consumed, piece.len(), "a body that goes on takes everything");
        }
        (total, body.feed(b"").state)
    }

    fn status(bytes: &[u8]) -> u16 {
        match skip(Framing::Chunked, 100, &[bytes]).1 {
            SkipState::More => 100,
            SkipState::Done => 200,
            SkipState::Refuse(refusal) => refusal.status.0,
        }
    }

    #[test]
    fn a_body_ends_where_its_framing_says_and_the_next_request_is_left_alone() {
        assert_eq!(skip(Framing::None, 0, &[b"GET"]), (0, SkipState::Done));
        assert_eq!(skip(Framing::Length(0), 0, &[b"GET"]), (0, SkipState::Done));
        assert_eq!(skip(Framing::Length(3), 3, &[b"ab", b"cGET"]), (3, SkipState::Done));
        assert_eq!(skip(Framing::Length(3), 3, &[b"ab"]), (2, SkipState::More));
        let body = b"3;a=b\r\nabc\r\nA\r\n0123456789\r\n000\r\nX: y\r\n\r\nGET";
        assert_eq!(skip(Framing::Chunked, 13, &[body]), (body.len() - 3, SkipState::Done));
    }

    #[test]
    fn a_body_beyond_the_limit_is_refused_as_soon_as_its_length_is_known() {
        assert_eq!(skip(Framing::Length(101), 100, &[]), (0, SkipState::Refuse(BODY_TOO_LONG)));
        assert_eq!(skip(Framing::Length(u64::MAX), u64::MAX, &[b"a"]), (1, SkipState::More));
        assert_eq!(skip(Framing::Chunked, 100, &[b"65\r\n"]), (2, SkipState::Refuse(BODY_TOO_LONG)));
        assert_eq!(status(b"64\r\n"), 100);
        assert_eq!(status(b"ffffffffffffffff\r\n"), 413);
        let sixty = [b"3c\r\n".as_slice(), &[b'x'; 60], b"\r\n"].concat();
        assert_eq!(status(&sixty), 100);
        assert_eq!(status(&sixty.repeat(2)), 413);
    }

    #[test]
    fn the_chunk_grammar_is_read_strictly() {
        let table: &[(&[u8], u16)] = &[
            (b"0\r\n\r\n", 200),
            (b"1;a=\"b;c\"\r\nx\r\n0\r\n\r\n", 200),
            (b"0\r\nA: b\r\nC:\r\n\r\n", 200),
            (b"1\r\nx", 100),
            (b"\r\n", 400), // no size
            (b";a\r\n", 400),
            (b"1\nx", 400),   // bare LF
            (b"1\rx", 400),   // bare CR
            (b"1 \r\n", 400), // space after the size
            (b" 1\r\n", 400),
            (b"+1\r\n", 400),
            (b"0x1\r\n", 400),
            (b"g\r\n", 400),
            (b"00000000000000000\r\n", 400), // 17 digits
            (b"1;a\nx\r\n", 400),            // LF in an extension
            (b"1;a\rb\r\n", 400),
            (b"1;\0\r\n", 400),
            (b"1\r\nxy", 400), // data longer than its size
            (b"1\r\nx\n", 400),
            (b"1\r\nx\ry", 400),
            (b"0\r\n\n", 400),
            (b"0\r\nA: b\n\r\n", 400),
            (b"0\r\nA b\r\n\r\n", 400), // no colon
            (b"0\r\n: b\r\n\r\n", 400),
            (b"0\r\n folded\r\n\r\n", 400),
            (b"0\r\nA: \0\r\n\r\n", 400),
            (b"0\r\n\rx", 400),
        ];
        for (bytes, expected) in table {
            assert_eq!(status(bytes), *expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded_over_the_whole_body() {
        let chunk = format!("1;{}\r\nx\r\n", "a".repeat(1000));
        assert_eq!(status(chunk.repeat(4).as_bytes()), 100);
        assert_eq!(status(chunk.repeat(5).as_bytes()), 400);
        let field = format!("A: {}\r\n", "a".repeat(1000));
        assert_eq!(status(format!("0\r\n{}", field.repeat(8)).as_bytes()), 100);
        assert_eq!(status(format!("0\r\n{}", field.repeat(9)).as_bytes()), 431);
    }

    fn bodies() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => (1usize..30).prop_map(|size| format!("{size:x}\r\n{}\r\n", "d".repeat(size))),
            1 => Just("2;a=b\r\nxy\r\n".to_owned()),
            1 => Just("0\r\n\r\n".to_owned()),
            1 => Just("0\r\nA: b\r\n\r\n".to_owned()),
            1 => "[0-9a-f;\r\n x]{0,6}",
        ];
        prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn every_split_of_a_body_gives_the_same_answer(bytes in bodies(), cut in any::<prop::sample::Index>()) {
            let whole = skip(Framing::Chunked, 100, &[&bytes]);
            for cut in 0..=bytes.len() {
                let (left, right) = bytes.split_at(cut);
                prop_assert_eq!(skip(Framing::Chunked, 100, &[left, right]), whole);
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(skip(Framing::Chunked, 100, &single), whole);
            let several: Vec<&[u8]> = bytes.chunks(1 + cut.index(16)).collect();
            prop_assert_eq!(skip(Framing::Chunked, 100, &several), whole);
        }

        #[test]
        fn no_bytes_panic_the_machine(
            bytes in prop::collection::vec(any::<u8>(), 0..300), limit in any::<u64>(), length in any::<u64>(),
        ) {
            for framing in [Framing::None, Framing::Length(length), Framing::Chunked] {
                let skip = BodySkip::new(framing, limit).feed(&bytes);
                prop_assert!(skip.consumed <= bytes.len());
            }
        }
    }

    /// All data of `pieces`, whether the body ended and what was left behind its end.
    fn data(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool, usize), Refusal> {
        let (mut body, mut data, mut ended, mut left) = (ChunkedBody::new(), Vec::new(), false, 0);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() && !ended {
                let fed = body.feed(rest)?;
                if let Some(run) = fed.data {
                    assert!(!run.is_empty() && run.end == fed.consumed, "{run:?} {}", fed.consumed);
                    data.extend_from_slice(&rest[run]);
                }
                assert!(fed.consumed > 0, "no call without progress");
                rest = &rest[fed.consumed..];
                ended = fed.done;
            }
            left += rest.len();
        }
        Ok((data, ended, left))
    }

    #[test]
    fn the_data_of_a_chunked_body_comes_out_without_its_framing() {
        let body = b"4;a=b\r\nring\r\n3\r\nway\r\n0\r\nA: b\r\n\r\nHTTP/1.1";
        assert_eq!(data(&[body]), Ok((b"ringway".to_vec(), true, 8)));
        let each: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(data(&each), Ok((b"ringway".to_vec(), true, 8)));
        assert_eq!(data(&[b"4\r\nring"]), Ok((b"ring".to_vec(), false, 0)));
        for bad in ["x\r\n", "4\r\nring0\r\n\r\n", "4\nring", "-1\r\n", "11111111111111111\r\n"] {
            assert!(data(&[bad.as_bytes()]).is_err(), "{bad}");
        }
        let mut body = ChunkedBody::new();
        let refusal = body.feed(b"x").unwrap_err();
        assert_eq!((body.feed(b""), body.feed(b"0\r\n\r\n")), (Err(refusal), Err(refusal)), "an error stays");
    }

    #[test]
    fn data_may_be_moved_past_the_machine() {
        let mut body = ChunkedBody::new();
        assert_eq!(body.feed(b"10\r\n"), Ok(Fed { consumed: 4, data: None, done: false }));
        assert_eq!(body.data_left(), 16);
        body.advance(10);
        assert_eq!(body.feed(b"abcdef\r\n"), Ok(Fed { consumed: 6, data: Some(0..6), done: false }));
        assert_eq!((body.data_left(), body.feed(b"\r\n0\r\n\r\n").map(|fed| fed.done)), (0, Ok(true)));
    }

    #[test]
    #[should_panic(expected = "no more than what is left")]
    fn framing_is_never_moved_as_data() {
        ChunkedBody::new().advance(1);
    }

    proptest! {
        #[test]
        fn what_is_chunked_comes_back_however_it_is_split(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), cuts in prop::collection::vec(1usize..20, 1..40),
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                write_chunk_head(&mut wire, chunk.len() as u64);
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(CHUNK_END);
            }
            wire.extend_from_slice(LAST_CHUNK);
            let (mut rest, mut pieces) = (wire.as_slice(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            prop_assert_eq!(data(&pieces), Ok((chunks.concat(), true, 0)));
        }

        #[test]
        fn the_two_readers_of_a_chunked_body_agree(bytes in "[0-3a;\r\n:]{0,40}") {
            let skipped = skip(Framing::Chunked, u64::MAX, &[bytes.as_bytes()]);
            match (data(&[bytes.as_bytes()]), skipped.1) {
                (Ok((_, ended, left)), state) => {
                    prop_assert_eq!((bytes.len() - left, ended), (skipped.0, state == SkipState::Done));
                }
                (Err(refusal), state) => prop_assert_eq!(state, SkipState::Refuse(refusal)),
            }
        }
    }
}
