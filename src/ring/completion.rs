//! What a completion says, read in the order that cannot mislead: flags before sign (R4).

/// An errno, positive, with the kernel's several ways of saying "cancelled" folded into one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Errno(pub i32);

/// io_splice hands ERESTARTSYS to user space untranslated when its worker is interrupted.
const ERESTARTSYS: i32 = 512;

impl Errno {
    /// From a negative result.
    pub fn from_result(res: i32) -> Self {
        match res.unsigned_abs() as i32 {
            ERESTARTSYS | libc::EINTR | libc::ECANCELED => Errno(libc::ECANCELED),
            errno => Errno(errno),
        }
    }
    /// "Not now": the socket is full, or the pipe is.
    pub fn is_again(self) -> bool {
        self.0 == libc::EAGAIN
    }
    /// Cancelled by us.
    pub fn is_canceled(self) -> bool {
        self.0 == libc::ECANCELED
    }
    /// The client went away: a fact to count, not an error to report.
    pub fn is_gone(self) -> bool {
        matches!(
            self.0,
            libc::EPIPE
                | libc::ECONNRESET
                | libc::ENOTCONN
                | libc::ETIMEDOUT
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ECONNABORTED
        )
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::error::errno_name(self.0))
    }
}

/// Bytes moved, a descriptor, or poll events; a short count is a success that the caller must look at.
pub type Outcome = Result<u32, Errno>;

const F_BUFFER: u32 = 1 << 0;
const F_MORE: u32 = 1 << 1;
const F_NOTIF: u32 = 1 << 3;
/// IORING_NOTIF_USAGE_ZC_COPIED: at least part of the send was copied.
const ZC_COPIED: u32 = 1 << 31;

/// One completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// The encoded token.
    pub user_data: u64,
    /// Raw result.
    pub res: i32,
    /// Raw flags.
    pub flags: u32,
}

impl Cqe {
    /// More completions of this operation will come.
    pub fn has_more(&self) -> bool {
        self.flags & F_MORE != 0
    }
    /// This is the notification of a zero-copy send, not its result.
    pub fn is_notification(&self) -> bool {
        self.flags & F_NOTIF != 0
    }
    /// This answers a cancel request.
    pub fn is_cancel(&self) -> bool {
        self.user_data >> 56 == super::token::Part::Cancel as u64
    }
    /// The provided buffer the kernel chose.
    pub fn buffer(&self) -> Option<u16> {
        (self.flags & F_BUFFER != 0).then_some((self.flags >> 16) as u16)
    }
    /// The kernel's verdict, on a notification of a send that asked for it.
    pub fn copied(&self) -> bool {
        self.res as u32 & ZC_COPIED != 0
    }
    /// The result by its sign; meaningless on a notification.
    pub fn outcome(&self) -> Outcome {
        u32::try_from(self.res).map_err(|_| Errno::from_result(self.res))
    }
    /// For tests and the simulated kernel: flags from their meaning.
    pub fn flags_of(more: bool, notification: bool, buffer: Option<u16>) -> u32 {
        (if more { F_MORE } else { 0 })
            | (if notification { F_NOTIF } else { 0 })
            | buffer.map_or(0, |id| F_BUFFER | u32::from(id) << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_say_cancelled_is_one() {
        for res in [-libc::ECANCELED, -libc::EINTR, -512] {
            assert!(Errno::from_result(res).is_canceled(), "{res}");
        }
        assert!(Errno::from_result(-libc::EAGAIN).is_again());
        assert!(Errno::from_result(i32::MIN).0 != 0, "the most negative result does not overflow");
    }

    #[test]
    fn a_notification_with_the_high_bit_is_a_verdict_not_an_error() {
        let cqe = Cqe { user_data: 0, res: ZC_COPIED as i32, flags: F_NOTIF };
        assert!(cqe.res < 0 && cqe.is_notification() && cqe.copied());
    }

    #[test]
    fn the_buffer_is_read_even_from_an_error() {
        let cqe = Cqe { user_data: 0, res: -libc::ECONNRESET, flags: Cqe::flags_of(false, false, Some(7)) };
        assert_eq!(cqe.buffer(), Some(7));
    }
}
