//! Which model server a rollout's calls go to.

use sha2::{Digest, Sha256};

/// Pins a rollout to one of `servers` endpoints (sorted by URL), so that its growing prompt finds its prefix cached.
/// The first eight bytes of the id's SHA-256, as a big-endian number, modulo the count: the original's rule, so that a
/// mixed fleet agrees. `None` if there are no servers.
pub fn pinned(rollout_id: &str, servers: usize) -> Option<usize> {
    let digest = Sha256::digest(rollout_id.as_bytes());
    let head = digest.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    head.checked_rem(servers as u64).map(|index| index as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_as_the_original_does() {
        // int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") % n
        assert_eq!(pinned("pin3-0", 3), Some(2));
        assert_eq!(pinned("pin3-1", 3), Some(0));
        assert_eq!(pinned("pin3-2", 3), Some(1));
        assert_eq!(pinned("ünï-中", 7), Some(2));
        assert_eq!(pinned("anything", 0), None);
    }
}
