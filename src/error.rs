//! Errors as people meet them: what was tried, what the kernel said by name, and what to do about it.

use std::fmt;

/// What went wrong, as the exit code tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A failure while running (exit code 1).
    Runtime,
    /// The command line was wrong (exit code 2, as clap has it).
    Usage,
    /// Not permitted: io_uring denied, memlock, a low port (exit code 77, EX_NOPERM).
    NotPermitted,
    /// The configuration is wrong (exit code 78, EX_CONFIG).
    Config,
}

/// A start-up or fatal error: what was tried, why it failed, and the remedy.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    tried: String,
    cause: String,
    remedy: Option<String>,
}

impl Error {
    /// An error of `kind`: `tried` completes "cannot ...", `cause` says what was seen.
    pub fn new(kind: Kind, tried: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { kind, tried: tried.into(), cause: cause.into(), remedy: None }
    }

    /// An error from the operating system, its errno named; EPERM and EACCES count as not permitted.
    pub fn os(tried: impl Into<String>, error: &std::io::Error) -> Self {
        let kind = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Kind::NotPermitted,
            _ => Kind::Runtime,
        };
        Self::new(kind, tried, describe(error))
    }

    /// The same error with what to do about it.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same error counted as another kind.
    pub fn kind_is(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// What kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The process exit code: 1 runtime, 2 usage, 77 not permitted, 78 configuration (sysexits).
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Runtime => 1,
            Kind::Usage => 2,
            Kind::NotPermitted => 77,
            Kind::Config => 78,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.tried, self.cause)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Shorthand for results of start-up steps.
pub type Result<T> = std::result::Result<T, Error>;

/// `EMFILE (Too many open files)`: the name people search for, then the words.
pub fn describe(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => {
            let text = error.to_string();
            let words = text.split(" (os error").next().unwrap_or_default();
            format!("{} ({words})", errno_name(errno))
        }
        None => error.to_string(),
    }
}

/// The symbolic name of an errno, or `errno N` where it has none here.
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::ENOSPC => "ENOSPC",
        libc::ESPIPE => "ESPIPE",
        libc::EROFS => "EROFS",
        libc::EPIPE => "EPIPE",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOSYS => "ENOSYS",
        libc::ELOOP => "ELOOP",
        libc::ETIME => "ETIME",
        libc::EPROTO => "EPROTO",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNRESET => "ECONNRESET",
        libc::ENOBUFS => "ENOBUFS",
        libc::ENOTCONN => "ENOTCONN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EALREADY => "EALREADY",
        libc::ECANCELED => "ECANCELED",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_os_error_is_told_by_name_with_its_remedy() {
        let error = std::io::Error::from_raw_os_error(libc::EMFILE);
        let told = Error::os("open ./site", &error).remedy("raise RLIMIT_NOFILE").to_string();
        assert_eq!(told, "cannot open ./site: EMFILE (Too many open files); raise RLIMIT_NOFILE");
    }

    #[test]
    fn exit_codes_follow_sysexits() {
        let codes = [Kind::Runtime, Kind::Usage, Kind::NotPermitted, Kind::Config]
            .map(|kind| Error::new(kind, "x", "y").exit_code());
        assert_eq!(codes, [1, 2, 77, 78]);
    }
}
