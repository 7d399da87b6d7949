# SPDX-License-Identifier: Apache-2.0
"""onehop.triton without a GPU: the PTX of each function, and what they do in the interpreter."""

import ctypes
import importlib
import importlib.metadata
import itertools
import re
import struct
import sys
import time

import onehop
import pytest
from fake_gpu import Driver
from processes import DEADLINE, run_alone, run_pair


def why_no_triton():
    """Why there is none; empty if there is. It is not imported: a test interprets its library."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "no Triton"
    new = tuple(int(part) for part in version.split(".")[:2]) >= (3, 6)
    return "" if new else f"Triton {version} is older than 3.6"


needs_triton = pytest.mark.skipif(bool(why_no_triton()), reason=why_no_triton())
RANGE, TIMEOUT, ABORTED = 2, 3, 4  # oh_lane_fault

# ---- The PTX

# The accesses of each kernel that are not weak, in any order: loops are laid out as they come.
LOOK = ["relaxed.gpu", "volatile"]  # at the host's word; thread 0 tells the others what it found
EXPECTED = {
    "signal_once": ["release.sys.add"],
    "set_once": ["release.sys.exch"],
    "wait_once": ["acquire.sys", "acquire.gpu.cas", "relaxed.gpu", *LOOK],
    "wait_until_once": ["acquire.sys", "relaxed.gpu", *LOOK],
    "read_once": ["acquire.sys", "relaxed.gpu", *LOOK],
    "meet_once": ["release.sys.add", "acquire.sys", *["relaxed.gpu"] * 2, *LOOK],
}
SIGNALS, WAITS = ("signal_once", "set_once"), ("wait_once", "wait_until_once", "meet_once")
PARAMETERS = {"lane": "i64", "slot": "i32", "count": "i64", "there": "i64", "fault": "i64"}
LINE = re.compile(r"^\s*(?:@(!?%p\d+)\s+)?([\w.:]+)\s*(.*?);", re.MULTILINE)
ACCESS = re.compile(r"(?:ld|st|atom|red)\.")
LABEL = re.compile(r"^(\$L__BB\w+):", re.MULTILINE)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    triton = importlib.import_module("triton")
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield importlib.import_module("triton_kernels")


def compile_kernel(kernels, name, gpu=90, warps=4):
    """Return the PTX of a kernel's body, which ptxas has assembled, too."""
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.backends.compiler")
    source = triton.compiler.ASTSource(getattr(kernels, name), PARAMETERS)
    options = {"num_warps": warps}
    made = triton.compile(source, compiler.GPUTarget("cuda", gpu, 32), options)
    assert made.asm["cubin"]
    return re.search(r"\.entry.*?\n\{(.*?)\n\}", made.asm["ptx"], re.DOTALL)[1]


def name_of(instruction):
    """Return an access of memory by its order, scope and operation; "" if it is of another kind."""
    if instruction.startswith("bar"):
        return "barrier"
    parts = instruction.split(".")
    if not ACCESS.match(instruction) or "global" not in parts:
        return ""
    # Triton reads by adding 0, of which it makes a load where it can: one name for both.
    wanted = ("relaxed", "acquire", "release", "volatile"), ("gpu", "sys"), ("cas", "exch")
    strong = [part for kind in wanted for part in kind if part in parts]
    if "release" in parts and "add" in parts:
        strong.append("add")
    return ".".join(strong) or ("load" if parts[0] == "ld" else "store")


def steps_of(ptx):
    return [name for name in (name_of(line[2]) for line in LINE.finditer(ptx)) if name]


def is_strong(step):
    return step not in ("barrier", "load", "store")


OPERATIONS = {
    "mov.u32": lambda a: a,
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "shr.u32": lambda a, b: a >> b,
    "setp.eq.b32": lambda a, b: a == b,
    "setp.ne.b32": lambda a, b: a != b,
    "setp.lt.u32": lambda a, b: a < b,
    "setp.gt.u32": lambda a, b: a > b,
}


class Guards:
    """Which threads of a block make an access, as far as that follows from their number."""

    def __init__(self, ptx):
        self.made = {}
        for line in LINE.finditer(ptx):
            target, *operands = [part.strip() for part in line[3].split(",")]
            if target.startswith("%") and line[1] is None:
                self.made.setdefault(target, []).append((line[2], operands))

    def value(self, name, thread):
        """Return what a register has in a thread, by each of its instructions; or None."""
        if re.fullmatch(r"-?\d+", name):
            return int(name)
        if name == "%tid.x":
            return thread
        values = {self.result(*made, thread) for made in self.made.get(name, ())}
        return values.pop() if len(values) == 1 else None

    def result(self, operation, operands, thread):
        if operation == "and.pred":
            given = [self.value(operand, thread) for operand in operands]
            return False if False in given else None if None in given else True
        if operation not in OPERATIONS:
            return None
        given = [self.value(operand, thread) for operand in operands]
        return None if None in given else OPERATIONS[operation](*given)

    def threads(self, guard, of):
        return [one for one in range(of) if self.value(guard, one) is not False]


@needs_triton
@pytest.mark.parametrize("gpu", [80, 90])
@pytest.mark.parametrize("name", EXPECTED)
def test_the_accesses_have_their_order_and_scope(kernels, name, gpu):
    steps = steps_of(compile_kernel(kernels, name, gpu))
    assert sorted(filter(is_strong, steps)) == sorted(EXPECTED[name])


@needs_triton
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("name", EXPECTED)
def test_one_thread_makes_each_access(kernels, name, warps):
    ptx = compile_kernel(kernels, name, warps=warps)
    guards, accesses = Guards(ptx), []
    for line in LINE.finditer(ptx):
        step = name_of(line[2])
        if is_strong(step) and step not in ("", "volatile"):
            assert line[1], f"all threads: {line[0]}"
            accesses.append((step, guards.threads(line[1], 32 * warps)))
    assert accesses
    # A barrier's are one for each of 64 ranks; what thread 0 tells the others is one.
    ranks = [*range(min(64, 32 * warps))]
    for step, threads in accesses:
        shared = name == "meet_once" and step == "relaxed.gpu" and threads == [0]
        assert threads == (ranks if name == "meet_once" and not shared else [0]), (step, threads)


def test_accesses_by_several_threads_are_found():
    ptx = """
        mov.u32 %r1, %tid.x;
        and.b32 %r2, %r1, 31;
        setp.eq.b32 %p1, %r2, 0;
        setp.lt.s64 %p2, %rd1, %rd2;
        and.pred %p3, %p1, %p2;
    """
    assert Guards(ptx).threads("%p3", 96) == [0, 32, 64]
    assert Guards(ptx).threads("%p2", 96) == [*range(96)]


@needs_triton
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("name", [*SIGNALS, "meet_once"])
def test_a_signal_comes_behind_what_all_threads_have_stored(kernels, name, warps):
    steps = steps_of(compile_kernel(kernels, name, warps=warps))
    release = next(i for i, step in enumerate(steps) if step.startswith("release"))
    assert "store" in steps[:release]
    between = steps[max(i for i in range(release) if steps[i] == "store") : release]
    assert "barrier" in between
    assert "acquire.sys" not in steps[:release]


@needs_triton
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("name", [*WAITS, "read_once"])
def test_what_was_waited_for_is_read_behind_a_barrier(kernels, name, warps):
    steps = steps_of(compile_kernel(kernels, name, warps=warps))
    last = max(i for i, step in enumerate(steps) if is_strong(step))
    behind = steps[last + 1 :]
    assert "load" in behind
    assert "barrier" in behind[: behind.index("load")]


@needs_triton
@pytest.mark.parametrize("name", WAITS)
def test_polls_are_in_a_loop(kernels, name):
    ptx = compile_kernel(kernels, name)
    poll = next(line for line in LINE.finditer(ptx) if name_of(line[2]) == "acquire.sys")
    begun = [label[1] for label in LABEL.finditer(ptx, 0, poll.start())]
    assert any(
        re.search(rf"\bbra(?:\.uni)?\s+{re.escape(label)};", ptx[poll.end() :]) for label in begun
    )


@needs_triton
def test_no_load_of_a_loop_is_begun_before_the_wait(kernels):
    assert "cp.async" not in compile_kernel(kernels, "wait_in_a_pipeline")


# ---- In Triton's interpreter


class End:
    """Counts of one side and the host's word, in memory of the host."""

    def __init__(self):
        self.counts, self.host = (ctypes.c_int64 * 192)(), ctypes.c_int64()

    def handle(self, other):
        """Return the oh_lane_handle of lane 5."""
        notice = ctypes.addressof(self.host) - (16 - 5) * 384
        counts = ctypes.addressof(self.counts), ctypes.addressof(other.counts)
        return struct.pack("6I40xQ8xQ8xQQ16x", 2, 5, 0, 9, 0, 0, notice, 10**9, *counts)

    def look(self, slot):
        return self.counts[slot], self.counts[64 + slot]


class Program:
    """Runs one call of a handle by a kernel, and returns its fault."""

    def __init__(self, kernels, *lanes):
        oh = importlib.import_module("onehop.triton")
        words = [word for lane in lanes for word in oh._words(lane)]
        self.words = (ctypes.c_int64 * len(words))(*words)
        self.kernels = kernels
        self.data = (ctypes.c_int64 * 128)()

    def __call__(self, name, slot, count=0):
        fault = ctypes.c_int64(-1)
        addresses = [ctypes.addressof(one) for one in (self.words, self.data, fault)]
        getattr(self.kernels, name)[(1,)](addresses[0], slot, count, *addresses[1:])
        return fault.value


def interpreted():
    """Import the kernels for the interpreter, with a second between two looks at the clock."""
    kernels = importlib.import_module("triton_kernels")
    oh, tl = importlib.import_module("onehop.triton"), importlib.import_module("triton.language")
    seconds = itertools.count(1)
    oh._LOOK = tl.constexpr(4)
    tl.extra.cuda.globaltimer = lambda: tl.cast(next(seconds) * 10**9, tl.int64)
    return kernels


def signal_and_wait():
    kernels, one, two = interpreted(), End(), End()
    first, second = Program(kernels, one.handle(two)), Program(kernels, two.handle(one))
    assert first("signal_once", 3, 2) == 0
    assert two.look(3) == (2, 0)
    assert second("wait_until_once", 3, 2) == 0
    assert second("read_once", 3) == 0
    assert second.data[:] == [1 + 2] * 128  # by the wait, and the count
    assert second("wait_once", 3, 1) == 0
    assert two.look(3) == (2, 1)
    assert second("wait_once", 3, 2) == TIMEOUT
    assert second("wait_until_once", 3, 2) == TIMEOUT
    assert two.look(3) == (2, 1)
    assert first("set_once", 4, 7) == 0
    assert second("wait_until_once", 4, 7) == 0
    for name in EXPECTED:
        for slot in (-1, 64):
            assert second(name, slot, 1) == RANGE, (name, slot)
    two.host.value = 1
    assert second("wait_once", 3, 1) == 0
    assert second("wait_once", 3, 1) == ABORTED
    assert second("wait_until_once", 3, 1) == ABORTED
    assert second("read_once", 3) == ABORTED
    assert [*one.counts] == [0] * 192
    assert two.look(3) == (2, 2)


def meet():
    kernels, ends = interpreted(), {(of, to): End() for of in range(3) for to in range(3)}

    def lane(rank, other):
        if other == rank or (rank, other) not in ends:
            return bytes(128)
        return ends[rank, other].handle(ends[other, rank])

    ranks = [Program(kernels, *[lane(rank, other) for other in range(64)]) for rank in range(3)]
    assert ranks[0]("meet_once", 5) == TIMEOUT  # it has signalled
    assert ranks[1]("meet_once", 5) == TIMEOUT
    assert ranks[2]("meet_once", 5) == 0
    looks = {pair: end.look(5) for pair, end in ends.items()}
    assert looks == {
        **{(rank, rank): (0, 0) for rank in range(3)},
        **{(0, 1): (1, 0), (0, 2): (1, 0), (1, 0): (1, 0), (1, 2): (1, 0)},
        **{(2, 0): (1, 1), (2, 1): (1, 1)},
    }
    ends[0, 2].host.value = 1
    assert ranks[0]("meet_once", 6) == ABORTED


@needs_triton
@pytest.mark.parametrize("function", [signal_and_wait, meet])
def test_in_the_interpreter(function, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    run_alone(function)


# ---- Without Triton, and its handles


def import_without():
    sys.modules["triton"] = None
    with pytest.raises(ImportError, match="pip install triton"):
        importlib.import_module("onehop.triton")


def test_an_import_without_triton_says_what_to_install():
    run_alone(import_without)


def look_at_words(side):
    oh = importlib.import_module("onehop.triton")
    side.peer.warmup(timeout=30)
    handles = [side.peer.device_handle(lane) for lane in (14, 15)]
    of_lane = handles[1].notice - handles[0].notice
    for handle in handles:
        words = oh._words(bytes(handle))
        assert words[:2] == [handle.signals, handle.their_signals]
        assert words[2] == handles[1].notice + of_lane  # behind those of the lanes
        assert words[3:] == [handle.timeout_ns, 0, 1, 2, 3, 4]
    driver = Driver(side.number)
    assert driver.read(words[2], 8) == bytes(8)
    side.sync()
    if side.number == 1:
        side.peer.close()
    else:
        end = time.monotonic() + DEADLINE
        while driver.read(words[2], 8) == bytes(8):
            assert time.monotonic() < end, "the word was not written"
            time.sleep(0.001)


@needs_triton
@pytest.mark.usefixtures("fake_gpus")
def test_words_of_a_handle():
    if onehop.info().kernel_bytes == 0:
        pytest.skip("this build of onehop has no kernels (ONEHOP_CUDA=OFF)")
    run_pair(look_at_words, look_at_words, devices=(0, 1))
