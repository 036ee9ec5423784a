"""Sandbox of the decoder process: a process that enters it keeps its memory and its open files, and gets nothing else.

Each layer holds without the others. Where the system lacks one, the process runs with those that it has.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Mapping

NICENESS = 10

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38

# numbers of system calls by machine; tests compare them with the kernel's headers
SYSCALLS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        **{"read": 0, "write": 1, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13},
        **{"rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28, "getpid": 39},
        **{"exit": 60, "getppid": 110, "sigaltstack": 131, "gettid": 186, "futex": 202, "restart_syscall": 219},
        **{"clock_gettime": 228, "exit_group": 231, "prlimit64": 302, "seccomp": 317, "getrandom": 318},
        **{"landlock_create_ruleset": 444, "landlock_restrict_self": 446},
    },
    "aarch64": {
        **{"read": 63, "write": 64, "exit": 93, "exit_group": 94, "futex": 98, "clock_gettime": 113},
        **{"sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135},
        **{"rt_sigreturn": 139, "getpid": 172, "getppid": 173, "gettid": 178, "brk": 214, "munmap": 215},
        **{"mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "prlimit64": 261, "seccomp": 277},
        **{"getrandom": 278, "landlock_create_ruleset": 444, "landlock_restrict_self": 446},
    },
}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# They change only the process itself: memory, locks, its clock and its handlers of signals. read and write reach the
# socket to the parent, as no other file can be opened.
ALLOWED = (
    *("read", "write", "munmap", "mremap", "madvise", "brk", "futex", "sched_yield", "clock_gettime", "getrandom"),
    *("getpid", "getppid", "gettid", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack"),
    *("restart_syscall", "exit", "exit_group"),
)
ALLOWED_WITHOUT_EXEC = ("mmap", "mprotect")  # memory with data of an image never becomes code
PROT_EXEC = 4

# instructions of classic BPF and the results of a filter, as in <linux/filter.h> and <linux/seccomp.h>
LOAD, JUMP_IF_EQUAL, JUMP_IF_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
DENY = 0x00050000 | 1  # EPERM: Pillow reports an exception, and the process decodes the next image
OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENTS = 0, 4, 16  # in struct seccomp_data
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1

LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # number of rights by version of the interface
LANDLOCK_NET_RIGHTS, LANDLOCK_SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals

Instruction = tuple[int, int, int, int]  # code, instructions to skip if true, and if false, operand


def enter(max_address_space: int) -> list[str]:
    """Give up all rights that decoding does not need; return the layers of decoder_protocol that are active here."""
    os.nice(NICENESS)
    active = ["limits"]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # other processes of the user cannot attach to it
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:  # the next two layers need it
            active.append("no-new-privs")
        numbers = SYSCALLS.get(platform.machine())
        if numbers is not None and sys.maxsize > 2**32:
            has_landlock = _enter_landlock(libc, numbers)  # it needs a descriptor, which the limits forbid
            _set_limits(max_address_space)
            active += ["seccomp"] if _enter_seccomp(libc, numbers["seccomp"]) else []
            return active + (["landlock"] if has_landlock else [])
    _set_limits(max_address_space)
    return active


def set_limit(resource_id: int, limit: int, *, is_hard: bool = True) -> None:
    hard = resource.getrlimit(resource_id)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource_id, (limit, limit if is_hard else hard))


def make_filter(machine: str) -> list[Instruction]:
    """Return the seccomp filter: what it does not list fails, and calls of another architecture end the process."""
    numbers = SYSCALLS[machine]
    program: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (JUMP_IF_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, OFFSET_NUMBER),
    ]
    for name in ALLOWED:
        program += [(JUMP_IF_EQUAL, 0, 1, numbers[name]), (RETURN, 0, 0, ALLOW)]
    for name in ALLOWED_WITHOUT_EXEC:
        program += [
            (JUMP_IF_EQUAL, 0, 4, numbers[name]),
            (LOAD, 0, 0, _argument(2)),
            (JUMP_IF_SET, 1, 0, PROT_EXEC),
            (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, DENY),
        ]
    # each image has a limit of CPU time: prlimit64(0, RLIMIT_CPU, ...), on the process itself only
    program += [
        (JUMP_IF_EQUAL, 0, 5, numbers["prlimit64"]),
        (LOAD, 0, 0, _argument(0)),
        (JUMP_IF_EQUAL, 0, 3, 0),
        (LOAD, 0, 0, _argument(1)),
        (JUMP_IF_EQUAL, 0, 1, resource.RLIMIT_CPU),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, DENY),
    ]
    return program


def _argument(index: int) -> int:
    """Return the offset of the lower half of an argument; both machines are little-endian."""
    return OFFSET_ARGUMENTS + 8 * index


def _set_limits(max_address_space: int) -> None:
    set_limit(resource.RLIMIT_AS, max_address_space)
    for none_of in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        set_limit(none_of, 0)  # stdin, stdout and stderr stay open; a new descriptor of any number is refused


def _enter_seccomp(libc: ctypes.CDLL, number: int) -> bool:
    program = make_filter(platform.machine())
    content = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    # struct sock_fprog
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(content)))
    arguments = (SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, ctypes.addressof(header))
    return _syscall(libc, number, *arguments) == 0


def _enter_landlock(libc: ctypes.CDLL, numbers: Mapping[str, int]) -> bool:
    """Forbid all files, and from later versions of the interface on connections and signals."""
    version = _syscall(libc, numbers["landlock_create_ruleset"], 0, 0, LANDLOCK_CREATE_RULESET_VERSION)
    if version < 1:
        return False
    rules = [(1 << LANDLOCK_FILE_RIGHTS[min(version, max(LANDLOCK_FILE_RIGHTS))]) - 1]
    rules += [LANDLOCK_NET_RIGHTS] if version >= 4 else []
    rules += [LANDLOCK_SCOPES] if version >= 6 else []
    content = ctypes.create_string_buffer(struct.pack(f"={len(rules)}Q", *rules), 8 * len(rules))
    ruleset = _syscall(libc, numbers["landlock_create_ruleset"], ctypes.addressof(content), len(content), 0)
    if ruleset < 0:
        return False
    done = _syscall(libc, numbers["landlock_restrict_self"], ruleset, 0)
    os.close(ruleset)
    return done == 0


def _syscall(libc: ctypes.CDLL, number: int, *arguments: int) -> int:
    # the function is variadic: without a type, ctypes passes an int, and the kernel reads the whole register
    return int(libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
