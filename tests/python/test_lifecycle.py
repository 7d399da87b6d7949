# SPDX-License-Identifier: Apache-2.0
"""Exit, fork, installation."""

import ctypes
import importlib.util
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import onehop
import pytest
from processes import DEADLINE, Group, run_pair


def run_script(text, *options):
    """Run a program; it must end by itself, with nothing to say."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", *options, "-c", text],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


PENDING = """
import onehop, threading
first, second = onehop.Endpoint(), onehop.Endpoint()
peer = first.connect(second.address)
other = second.accept(timeout=30)
requests = [other.irecv(bytearray(100), tag=i) for i in range(10)]
sends = [peer.isend(bytes(100_000), tag=50 + i) for i in range(10)]
other.irecv(bytearray(3), tag=99)  # dropped
second.irecv(onehop.empty(10), tag=98)
region = second.register(bytearray(100))
remote = peer.attach(region.descriptor)
array = onehop.empty(100)
"""


def test_exit_with_pending_requests():
    run_script(PENDING)


def test_exit_with_a_thread_that_waits():
    run_script(
        PENDING
        + """
thread = threading.Thread(target=lambda: other.recv(bytearray(1), tag=77), daemon=True)
thread.start()
waiter = threading.Thread(target=lambda: second.accept(), daemon=True)
waiter.start()
"""
    )


def test_exit_with_an_exception():
    done = subprocess.run(
        [sys.executable, "-c", PENDING + "raise SystemExit(3)"],
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, b"")


def test_exit_while_awaiting():
    run_script(
        PENDING
        + """
import asyncio
async def main():
    task = asyncio.ensure_future(requests[0])
    await asyncio.sleep(0)
    peer.send(b"x", tag=0)
    await task
    asyncio.ensure_future(requests[1])
    await asyncio.sleep(0)
asyncio.run(main())
"""
    )


def test_nothing_is_left_of_closed_endpoints():
    text = run_script(
        """
import gc, os, time, onehop
def fds(): return len(os.listdir("/proc/self/fd"))
before = fds()
def cycle():
    with onehop.Endpoint() as first, onehop.Endpoint() as second:
        peer = first.connect(second.address)
        other = second.accept(timeout=30)
        region = second.register(onehop.empty(100))
        remote = peer.attach(region.descriptor)
        peer.send(b"abc")
        other.recv(bytearray(3))
for _ in range(20): cycle()
# The process's own thread ends with the last endpoint, behind our back.
end = time.monotonic() + 30
while fds() > before and time.monotonic() < end: gc.collect()
print(fds() - before)
"""
    )
    assert int(text) == 0


def test_numpy_is_not_needed():
    text = run_script(
        """
import sys
sys.modules["numpy"] = None
import onehop
buffer = onehop.empty(10)
with onehop.Endpoint() as first, onehop.Endpoint() as second:
    peer = first.connect(second.address)
    peer.send(b"0123456789")
    second.accept(timeout=30).recv(buffer)
print(bytes(buffer).decode())
"""
    )
    assert text.strip() == "0123456789"


# ---- fork()


FORKED = """
import os, onehop
first, second = onehop.Endpoint(), onehop.Endpoint()
peer = first.connect(second.address)
other = second.accept(timeout=30)
request = other.irecv(bytearray(5))
region = second.register(bytearray(10))
remote = peer.attach(region.descriptor)
comm = onehop.Communicator(0, 1)
shown = repr(peer)
child = os.fork()
if child == 0:
    calls = [
        lambda: first.connect(second.address), lambda: second.accept(), lambda: first.progress(),
        lambda: peer.send(b""), lambda: other.recv(bytearray(1)), lambda: peer.irecv(bytearray(1)),
        lambda: second.recv(bytearray(1)), lambda: request.wait(), lambda: request.test(),
        lambda: request.cancel(), lambda: peer.put(bytes(10), remote).wait(),
        lambda: peer.wait_signal(1), lambda: peer.signal(1), lambda: peer.notify(b""),
        lambda: second.notifications(), lambda: region.deregister(), lambda: region.descriptor,
        lambda: first.register(bytearray(1)), lambda: peer.attach(b"x"), lambda: comm.barrier(),
        lambda: comm.send(b"", 0), lambda: comm.peer(0), lambda: first.address,
        lambda: peer.info(), lambda: peer.stats(), lambda: peer.stream_info(),
        lambda: remote.device_memory(),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except onehop.EndpointError as failure:
            assert failure.status is onehop.Status.FORKED, (number, failure)
        else:
            raise AssertionError(number)
    assert repr(peer) == shown
    first.close()
    comm.close()
    # What the child makes itself works.
    with onehop.Endpoint() as mine, onehop.Endpoint() as yours:
        mine.connect(yours.address).send(b"child")
        assert yours.accept(timeout=30).recv(bytearray(5)).nbytes == 5
    del peer, other, request, region, remote, comm, first, second
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
# And the parent's are as they were.
peer.send(b"hello")
assert request.wait(timeout=30).nbytes == 5
peer.put(bytes(10), remote).wait(timeout=30)
"""


def test_objects_of_the_parent_are_dead_in_a_child():
    # Python warns of any fork in a process with threads.
    run_script(FORKED, "-W", "ignore::DeprecationWarning")


def fork_children(side):
    """Children of fork, as a data loader has them, must not disturb a link."""
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=os.getpid) for _ in range(3)]
    for child in children:
        child.start()
        side.peer.send(b"message", timeout=30)
    for child in children:
        child.join(DEADLINE)
        assert child.exitcode == 0
    side.peer.send(b"message", timeout=30)


def count_messages(side):
    for _ in range(4):
        assert side.peer.recv(bytearray(10), timeout=30).nbytes == 7


def test_children_do_not_disturb():
    run_pair(fork_children, count_messages)


def meet_in_a_child(rank, identity):
    with onehop.Communicator(rank, 2, unique_id=identity, timeout=30) as comm:
        comm.barrier(timeout=30)
        return comm.rank


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_start_methods(method):
    group = Group(multiprocessing.get_context(method))
    identity = onehop.unique_id()
    for rank in range(2):
        group.start(meet_in_a_child, rank, identity)
    assert group.join() == [0, 1]


# ---- The package


PROGRAM = """
#include <cstdio>
#include "onehop/onehop.hpp"
int main() {
  onehop::Endpoint endpoint;
  static_assert(OH_VERSION >= OH_MAKE_VERSION(0, 1, 0));
  std::printf("%s %d.%d.%d %zu", oh_version(), OH_VERSION_MAJOR, OH_VERSION_MINOR, OH_VERSION_PATCH,
              endpoint.address().size());
}
"""


def check_library():
    path = Path(__file__).resolve().parents[2] / "tools" / "check_library.py"
    spec = importlib.util.spec_from_file_location("check_library", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_package_has_the_library_under_its_soname():
    check = check_library()
    folder = Path(onehop.get_library_dir())
    library = folder / f"libonehop.so.{onehop.__version__.split('.')[0]}"
    assert check.offences(library, Path(onehop.get_include(), "onehop")) == []
    # The modules are linked with that file, and opening it again gives the same library.
    opened = ctypes.CDLL(str(library))
    opened.oh_version.restype = ctypes.c_char_p
    assert opened.oh_version().decode() == onehop.__version__
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert {line.split()[-1] for line in maps if "libonehop.so" in line} == {str(library)}


@pytest.mark.parametrize("module", ["_core", "_bench"])
def test_modules_export_their_entry_alone(module):
    # A standard library within them, exported, would be mixed with the one that numpy loads.
    found = importlib.util.find_spec(f"onehop.{module}")
    assert check_library().exported(Path(found.origin)) == {f"PyInit_{module}"}


def test_programs_can_be_built_against_the_package(tmp_path):
    source, program = tmp_path / "program.cc", tmp_path / "program"
    source.write_text(PROGRAM)
    library = onehop.get_library_dir()
    assert Path(library, "libonehop.so").is_file()
    command = ["c++", "-std=c++17", str(source), "-o", str(program), f"-I{onehop.get_include()}"]
    command += [f"-L{library}", "-lonehop", f"-Wl,-rpath,{library}"]
    subprocess.run(command, check=True, timeout=DEADLINE)
    done = subprocess.run([program], capture_output=True, text=True, timeout=DEADLINE, check=True)
    version, headers, size = done.stdout.split()
    assert version == headers == onehop.__version__
    # The addresses name their processes, whose numbers may differ in length.
    assert abs(int(size) - len(onehop.Endpoint().address)) < 8
