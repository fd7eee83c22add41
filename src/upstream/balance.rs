//! Pure: the order in which origins are tried for a path, by rendezvous hashing.
//!
//! Every origin gets a score for every path from a hash of both; the highest is asked. An origin that comes or goes moves
//! only the paths that are its own, and each path has a second choice that is spread as evenly as the first.

/// An origin as the hash sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    seed: u64,
}

impl Peer {
    /// By name, so that every core and every restart agrees whatever the order in the configuration.
    pub fn new(name: &str) -> Self {
        Self { seed: hash(0xcbf2_9ce4_8422_2325, name.as_bytes()) }
    }
}

/// FNV-1a with a finish that spreads its last bytes; stable over versions, which hashers of libraries are not.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mixed = bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ mixed >> 29
}

/// Indexes of `peers`, the one to ask first for `path` first.
pub fn rank(peers: &[Peer], path: &[u8]) -> Vec<usize> {
    let mut order: Vec<(u64, usize)> = peers.iter().enumerate().map(|(at, peer)| (hash(peer.seed, path), at)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    order.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn peers(count: usize) -> Vec<Peer> {
        (0..count).map(|at| Peer::new(&format!("10.0.0.{at}:9000"))).collect()
    }

    #[test]
    fn paths_are_spread_evenly_over_first_and_second_choices() {
        let peers = peers(5);
        let mut counts = [[0u32; 5]; 2];
        for path in 0..20_000 {
            let order = rank(&peers, format!("/objects/{path}").as_bytes());
            counts[0][order[0]] += 1;
            counts[1][order[1]] += 1;
        }
        for count in counts.iter().flatten() {
            assert!((3_700..4_300).contains(count), "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn an_origin_that_leaves_moves_only_its_own_paths(path in "/[a-z0-9/]{0,40}", gone in 0usize..6) {
            let all = peers(6);
            let mut fewer = all.clone();
            fewer.remove(gone);
            let before = rank(&all, path.as_bytes());
            let after = rank(&fewer, path.as_bytes());
            let expected: Vec<usize> = before.into_iter().filter(|at| *at != gone).map(|at| at - usize::from(at > gone)).collect();
            prop_assert_eq!(after, expected);
        }
    }
}
