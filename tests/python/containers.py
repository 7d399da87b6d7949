# SPDX-License-Identifier: Apache-2.0
"""Processes in containers of one machine: namespaces, file systems, users, filters and limits.

A Container says what its process does not share with this one, and what is done inside before the
test's function runs. No container engine takes part.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from processes import Failed, Group, _spawn, run_side

# The flags of unshare(2).
NAMESPACES = {
    "mount": 0x00020000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}
NOBODY = 65534
MS_RDONLY = 0x1
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
# Numbers of system calls on x86-64 and on arm64.
NUMBERS = {
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "memfd_create": (319, 279),
}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@dataclass(frozen=True)
class Container:
    """Namespaces of its own, and what is done inside, in this order."""

    own: tuple[str, ...] = ()  # of NAMESPACES
    steps: tuple[Callable[[], None], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


# ---- Steps


def become(uid, *, dumpable=True) -> None:
    """Have this user and group for good. dumpable: as after an exec, else as after a setuid()."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _check(_libc.prctl(PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "PR_SET_DUMPABLE")


def be_root_of_user_namespace(outside) -> None:
    """Move to a user namespace whose root is the user `outside`, as a rootless engine does."""
    become(outside)
    _check(_libc.unshare(NAMESPACES["user"]), "unshare(user)")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {outside} 1")
    Path("/proc/self/gid_map").write_text(f"0 {outside} 1")


def mount_tmpfs(path, options="size=1M") -> None:
    """An empty file system of its own at a path."""
    _check(
        _libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options.encode()), f"tmpfs on {path}"
    )


def mount_volume(source, path) -> None:
    """A folder of the machine at a path."""
    places = (os.fsencode(source), os.fsencode(path))
    _check(_libc.mount(*places, None, MS_BIND, None), f"{source} on {path}")


def make_read_only(path) -> None:
    """A path and the file system that holds it; other mounts below stay as they are."""
    place = os.fsencode(path)
    _check(_libc.mount(place, place, None, MS_BIND | MS_REC, None), f"bind {path}")
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY
    _check(_libc.mount(None, place, None, flags, None), f"read-only {path}")


def root_without(*names) -> None:
    """A root file system that lacks these folders of the root."""
    root = Path("/mnt")
    mount_tmpfs(root)
    for entry in Path("/").iterdir():
        inside = root / entry.name
        if entry.name in names or entry == root:
            continue
        if entry.is_symlink():
            inside.symlink_to(entry.readlink())
        elif entry.is_dir():
            inside.mkdir()
            flags = MS_BIND | MS_REC
            _check(_libc.mount(bytes(entry), bytes(inside), None, flags, None), f"bind {entry}")
    os.chroot(root)
    os.chdir("/")


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction)))


def forbid(*calls, failure=errno.EPERM) -> None:
    """Install a seccomp filter under which these system calls fail, as container engines do."""
    column = ("x86_64", "aarch64").index(platform.machine())
    load, equal, give = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 0)]  # the number of the call
    for call in calls:
        program += [(equal, 0, 1, NUMBERS[call][column]), (give, 0, 0, 0x00050000 | failure)]
    program.append((give, 0, 0, 0x7FFF0000))
    instructions = (_Instruction * len(program))(*program)
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    whole = _Program(len(program), instructions)
    _check(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(whole), 0, 0), "PR_SET_SECCOMP")


def limit(name, value) -> None:
    number = getattr(resource, f"RLIMIT_{name}")
    resource.setrlimit(number, (value, value))


def limit_open_files(more) -> None:
    """Leave room for so many descriptors beside those that are open."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    last = os.open(os.devnull, os.O_RDONLY)
    while last < highest:  # the limit is on numbers: none below it stays free
        last = os.dup(last)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1 + more, last + 1 + more))


# ---- Running in one


def contained(container, function, *arguments):
    """Call a function in a container: for processes that have just begun."""
    os.environ.update(container.environment)
    flags = functools.reduce(lambda flags, name: flags | NAMESPACES[name], container.own, 0)
    _check(_libc.unshare(flags), f"unshare({', '.join(container.own)})")
    if "mount" in container.own:
        _check(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    if "pid" not in container.own:
        return _inside(container, function, arguments)
    return _in_first_process(container, function, arguments)


def _inside(container, function, arguments):
    for step in container.steps:
        step()
    return function(*arguments)


def _in_first_process(container, function, arguments):
    """Only children are in the new PID namespace."""
    ours, theirs = _spawn.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        try:
            theirs.send((True, _inside(container, function, arguments)))
        except BaseException:
            theirs.send((False, traceback.format_exc()))
        finally:
            os._exit(0)
    theirs.close()
    try:
        ok, value = ours.recv()
    except EOFError:
        msg = f"the first process of the container ended with {os.waitpid(child, 0)[1]}"
        raise Failed(msg) from None
    os.waitpid(child, 0)
    if not ok:
        raise Failed(value)
    return value


def run_contained(containers, function, *arguments):
    """Run function(number, pipe, *arguments) in each of two containers; return the results."""
    pipes = _spawn.Pipe()
    group = Group()
    for number, container in enumerate(containers):
        group.start(contained, container, function, number, pipes[number], *arguments)
    return group.join()


def run_linked(containers, function, *arguments):
    """Run function(side, *arguments) in connected processes of two containers."""
    return run_contained(containers, run_side, function, arguments, None)


@functools.cache
def why_not(*own) -> str:
    """Why there can be no containers with these namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "only root may make namespaces and change the user"
    if shutil.which("unshare") is None:
        return "unshare is not installed (Debian: util-linux)"
    flags = {"network": "--net"}
    words = ["unshare", *(flags.get(name, f"--{name}") for name in own), "--fork", "true"]
    if own == ("user",):
        # As the tests do it: what root may do here, another user may not.
        code = f"import containers; containers.be_root_of_user_namespace({NOBODY})"
        words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parent
    )
    return f"no such namespaces here: {done.stderr.strip()}" if done.returncode else ""
