"""Runs a command under the system call list of a container profile (JSON) or a systemd unit.

    confined.py LIST COMMAND...        LIST: names separated by blanks, NAME=ERRNO for one that fails in its own way;
                                       calls not named fail with EPERM

The filter is made by libseccomp, as container runtimes and systemd make theirs: a name this libseccomp does not know is
left out, and the call then fails like every other that is not on the list.
"""
import ctypes, os, sys

names, command = sys.argv[1].split(), sys.argv[2:]
seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
seccomp.seccomp_init.restype = ctypes.c_void_p
seccomp.seccomp_init.argtypes = [ctypes.c_uint32]
seccomp.seccomp_rule_add_array.argtypes = [
    ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
seccomp.seccomp_load.argtypes = [ctypes.c_void_p]

ERRNO_EPERM, ALLOW, UNKNOWN = 0x00050000 | 1, 0x7FFF0000, -1
context = seccomp.seccomp_init(ERRNO_EPERM)
for name in names:
    name, _, errno = name.partition("=")
    action = 0x00050000 | int(errno) if errno else ALLOW
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    # Names of other architectures resolve to other negative numbers: they are not for this one.
    if number >= 0 and seccomp.seccomp_rule_add_array(context, action, number, 0, None) != 0:
        sys.exit(f"confined.py: no rule for {name}")
if (status := seccomp.seccomp_load(context)) != 0:
    sys.exit(f"confined.py: the filter does not load: {os.strerror(-status)}")
os.execv(command[0], command)
