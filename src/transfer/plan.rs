//! Pure: facts of one quantum to the engine that carries it, with the reason.
//!
//! A decision table, tested as one. It reads what was probed and what is known now; it never looks anything up itself.

use crate::config::EngineChoice;
use crate::sys::Residency;
use crate::telemetry::tally::{Engine, FallbackReason};

/// Below this, a zero-copy send costs more than it saves: page pinning and a second completion (measured by others at
/// 20 Gb/s: 32 KiB loses before notifications were merged in Linux 6.10, gains after).
pub const ZERO_COPY_FROM: u64 = 32 << 10;

/// Everything the decision reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// What the operator asked for.
    pub choice: EngineChoice,
    /// Bytes left of the body.
    pub left: u64,
    /// The pages about to be sent.
    pub residency: Residency,
    /// SEND_ZC works here.
    pub send_zc: bool,
    /// The kernel's reports say that zero-copy sends on this route are copied.
    pub route_copies: bool,
    /// This connection already has as much memory waiting for notifications as it may.
    pub notify_slow: bool,
    /// SPLICE works here without parking workers on full sockets.
    pub splice: bool,
    /// A pipe can be had.
    pub pipe: bool,
}

/// Why an engine was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The operator said so.
    Forced,
    /// Warm pages: one call moves references, nothing can wait.
    Warm,
    /// Cold pages on a route that really zero-copies: read into the arena, send it without a second copy.
    ColdZeroCopy,
    /// Cold pages: read into the arena through the ring, so that nobody waits for the disk but this client.
    Cold,
    /// Nobody can say whether the pages are there: a kernel worker waits for them, not the ring thread.
    Unknown,
    /// A body from a socket: references through a pipe where it is long, else what a relay of its length costs least by.
    Relay,
    /// The engine wanted cannot be had now.
    Fallback(FallbackReason),
}

/// An engine and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Which.
    pub engine: Engine,
    /// Why.
    pub reason: Reason,
}

/// Decides.
pub fn plan(facts: &Facts) -> Plan {
    let to = |engine, reason| Plan { engine, reason };
    match facts.choice {
        EngineChoice::Send => to(Engine::Send, Reason::Forced),
        EngineChoice::Sendfile => to(Engine::Sendfile, Reason::Forced),
        EngineChoice::SendZc => to(Engine::SendZc, Reason::Forced),
        EngineChoice::Splice if facts.pipe => to(Engine::Splice, Reason::Forced),
        EngineChoice::Splice => to(Engine::Send, Reason::Fallback(FallbackReason::NoPipe)),
        EngineChoice::Auto => match facts.residency {
            Residency::Warm => to(Engine::Sendfile, Reason::Warm),
            Residency::Cold if !facts.send_zc || facts.left < ZERO_COPY_FROM => to(Engine::Send, Reason::Cold),
            Residency::Cold if facts.route_copies => to(Engine::Send, Reason::Fallback(FallbackReason::RouteCopies)),
            Residency::Cold if facts.notify_slow => to(Engine::Send, Reason::Fallback(FallbackReason::SlowNotify)),
            Residency::Cold => to(Engine::SendZc, Reason::ColdZeroCopy),
            Residency::Unknown if facts.splice && facts.pipe => to(Engine::Splice, Reason::Unknown),
            Residency::Unknown if facts.splice => to(Engine::Send, Reason::Fallback(FallbackReason::NoPipe)),
            Residency::Unknown => to(Engine::Send, Reason::Fallback(FallbackReason::Unsupported)),
        },
    }
}

/// From here on a relayed body is worth a pipe: below, one receive and one send move it as cheaply.
pub const SPLICE_FROM: u64 = 64 << 10;

/// Everything the decision of a relay reads: a body that comes from a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayFacts {
    /// What the operator asked for.
    pub choice: EngineChoice,
    /// Bytes left of the body, where its length is known and nothing of it has to be looked at (chunks are).
    pub left: Option<u64>,
    /// A pipe can be had.
    pub pipe: bool,
    /// SEND_ZC works here.
    pub send_zc: bool,
    /// The kernel's reports say that zero-copy sends on this route are copied.
    pub route_copies: bool,
    /// This connection already has as much memory waiting for notifications as it may.
    pub notify_slow: bool,
}

/// Decides for the next step of a relay; `sendfile` cannot read a socket, so that asking for it is asking for `auto`.
pub fn relay(facts: &RelayFacts) -> Plan {
    let to = |engine, reason| Plan { engine, reason };
    let long = facts.left.is_some_and(|left| left >= SPLICE_FROM);
    match facts.choice {
        EngineChoice::Send => to(Engine::Send, Reason::Forced),
        EngineChoice::SendZc if facts.send_zc && !facts.notify_slow => to(Engine::SendZc, Reason::Forced),
        EngineChoice::SendZc if facts.send_zc => to(Engine::Send, Reason::Fallback(FallbackReason::SlowNotify)),
        EngineChoice::SendZc => to(Engine::Send, Reason::Fallback(FallbackReason::Unsupported)),
        EngineChoice::Splice if facts.left.is_none() => to(Engine::Send, Reason::Fallback(FallbackReason::Unsupported)),
        EngineChoice::Splice if facts.pipe => to(Engine::Splice, Reason::Forced),
        EngineChoice::Splice => to(Engine::Send, Reason::Fallback(FallbackReason::NoPipe)),
        EngineChoice::Auto | EngineChoice::Sendfile if long && facts.pipe => to(Engine::Splice, Reason::Relay),
        EngineChoice::Auto | EngineChoice::Sendfile => {
            let zero_copy = facts.send_zc && !facts.route_copies && !facts.notify_slow;
            match facts.left {
                // No pipe, and a route whose zero copy is none: copied.
                Some(left) if left >= ZERO_COPY_FROM && zero_copy => to(Engine::SendZc, Reason::Relay),
                _ if long => to(Engine::Send, Reason::Fallback(FallbackReason::NoPipe)),
                _ => to(Engine::Send, Reason::Relay),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        choice: EngineChoice::Auto,
        left: 1 << 20,
        residency: Residency::Warm,
        send_zc: true,
        route_copies: false,
        notify_slow: false,
        splice: true,
        pipe: true,
    };

    #[test]
    fn the_table() {
        use Residency::*;
        let rows: &[(&str, Facts, Engine, Reason)] = &[
            ("warm", FACTS, Engine::Sendfile, Reason::Warm),
            ("cold", Facts { residency: Cold, ..FACTS }, Engine::SendZc, Reason::ColdZeroCopy),
            ("cold, short", Facts { residency: Cold, left: 4096, ..FACTS }, Engine::Send, Reason::Cold),
            ("cold, no zc", Facts { residency: Cold, send_zc: false, ..FACTS }, Engine::Send, Reason::Cold),
            (
                "cold, copied anyway",
                Facts { residency: Cold, route_copies: true, ..FACTS },
                Engine::Send,
                Reason::Fallback(FallbackReason::RouteCopies),
            ),
            (
                "cold, slow client",
                Facts { residency: Cold, notify_slow: true, ..FACTS },
                Engine::Send,
                Reason::Fallback(FallbackReason::SlowNotify),
            ),
            ("unknown", Facts { residency: Unknown, ..FACTS }, Engine::Splice, Reason::Unknown),
            (
                "unknown, no pipe",
                Facts { residency: Unknown, pipe: false, ..FACTS },
                Engine::Send,
                Reason::Fallback(FallbackReason::NoPipe),
            ),
            (
                "unknown, no splice",
                Facts { residency: Unknown, splice: false, ..FACTS },
                Engine::Send,
                Reason::Fallback(FallbackReason::Unsupported),
            ),
            ("forced send", Facts { choice: EngineChoice::Send, ..FACTS }, Engine::Send, Reason::Forced),
            ("forced zc", Facts { choice: EngineChoice::SendZc, ..FACTS }, Engine::SendZc, Reason::Forced),
            ("forced splice", Facts { choice: EngineChoice::Splice, ..FACTS }, Engine::Splice, Reason::Forced),
            ("forced sendfile", Facts { choice: EngineChoice::Sendfile, ..FACTS }, Engine::Sendfile, Reason::Forced),
        ];
        for (name, facts, engine, reason) in rows {
            assert_eq!(plan(facts), Plan { engine: *engine, reason: *reason }, "{name}");
        }
    }

    #[test]
    fn the_table_of_relays() {
        const RELAY: RelayFacts = RelayFacts {
            choice: EngineChoice::Auto,
            left: Some(1 << 20),
            pipe: true,
            send_zc: true,
            route_copies: true,
            notify_slow: false,
        };
        let no_pipe = Reason::Fallback(FallbackReason::NoPipe);
        let rows: &[(&str, RelayFacts, Engine, Reason)] = &[
            ("long", RELAY, Engine::Splice, Reason::Relay),
            ("the last bytes of it", RelayFacts { left: Some(65_535), ..RELAY }, Engine::Send, Reason::Relay),
            ("of unknown length", RelayFacts { left: None, ..RELAY }, Engine::Send, Reason::Relay),
            ("no pipe", RelayFacts { pipe: false, ..RELAY }, Engine::Send, no_pipe),
            (
                "no pipe, zero copy that is one",
                RelayFacts { pipe: false, route_copies: false, ..RELAY },
                Engine::SendZc,
                Reason::Relay,
            ),
            ("sendfile is auto", RelayFacts { choice: EngineChoice::Sendfile, ..RELAY }, Engine::Splice, Reason::Relay),
            ("forced send", RelayFacts { choice: EngineChoice::Send, ..RELAY }, Engine::Send, Reason::Forced),
            ("forced zc", RelayFacts { choice: EngineChoice::SendZc, ..RELAY }, Engine::SendZc, Reason::Forced),
            (
                "forced splice of chunks",
                RelayFacts { choice: EngineChoice::Splice, left: None, ..RELAY },
                Engine::Send,
                Reason::Fallback(FallbackReason::Unsupported),
            ),
            (
                "forced splice without pipes",
                RelayFacts { choice: EngineChoice::Splice, pipe: false, ..RELAY },
                Engine::Send,
                no_pipe,
            ),
        ];
        for (name, facts, engine, reason) in rows {
            assert_eq!(relay(facts), Plan { engine: *engine, reason: *reason }, "{name}");
        }
    }

    #[test]
    fn a_forced_engine_never_depends_on_what_is_warm_or_copied() {
        for choice in [EngineChoice::Send, EngineChoice::SendZc, EngineChoice::Splice, EngineChoice::Sendfile] {
            for residency in [Residency::Warm, Residency::Cold, Residency::Unknown] {
                for route_copies in [false, true] {
                    let facts = Facts { choice, residency, route_copies, ..FACTS };
                    assert_eq!(plan(&facts).reason, Reason::Forced);
                }
            }
        }
    }
}
