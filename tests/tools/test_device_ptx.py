# SPDX-License-Identifier: Apache-2.0
"""What orders memory in the protocol's device code is in the PTX, and nothing more than that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("device_primitives.cu")
GROUPS = Path(__file__).with_name("device_groups.cu")
GUIDE = ROOT / "examples" / "kernel_groups.cu"
BATCH = ROOT / "src" / "kernels" / "batch.cu"
WORKER = ROOT / "src" / "kernels" / "worker.cu"
STREAM = ROOT / "src" / "kernels" / "stream.cu"
ATOMIC = ROOT / "src" / "kernels" / "atomic.cu"
PROXY = ROOT / "src" / "kernels" / "proxy.cu"
BENCH = ROOT / "bench" / "kernels.cu"

LANE = "ld.acquire.sys.global.b128"
LINE = "st.relaxed.sys.global.b128"
LOAD_LINE = "ld.relaxed.sys.global.b128"
LOAD = "ld.relaxed.sys.global.u64"
STORE = "st.relaxed.sys.global.u64"
ACQUIRE = "ld.acquire.sys.global.u64"
RELEASE = "st.release.sys.global.u64"
FENCE = "fence.acq_rel.sys"
SIGNAL = "red.release.sys.global.add.u64"
RELAXED_SIGNAL = "red.relaxed.sys.global.add.u64"
DONE = [FENCE, STORE, STORE]
# How the host is told of a fault, if the half had not failed before.
MARK = "atom.relaxed.gpu.global.or.b64"
TAKE = "atom.acquire.gpu.global.or.b64"
TOLD = [STORE] * 3 + [RELEASE]

# The kernels, and the accesses and fences of each that are not weak, in order.
EXPECTED = {
    "load_relaxed": ["ld.relaxed.sys.global.u64"],
    "store_relaxed": [STORE],
    "publish_word": [RELEASE],
    "poll_word": [ACQUIRE],
    "load_one_line": [LOAD_LINE],
    "store_one_line": [LINE],
    "write_all_lines": [LINE] * 7,
    "load_any_word": [],
    "store_any_word": [],
    "give_credit": [RELEASE],
    "post_a_target": [LINE, LINE],
    "put_and_signal": [SIGNAL],
    "put_and_signal_relaxed": [RELAXED_SIGNAL],
    "flush_and_signal_relaxed": [FENCE, RELAXED_SIGNAL, RELAXED_SIGNAL],
    "wait_for_signal": [LOAD, LOAD, ACQUIRE, "atom.acquire.gpu.global.cas.b64", LOAD],
    "wait_until_signal": [ACQUIRE, LOAD, LOAD],
    "read_one_signal": [LOAD, ACQUIRE, LOAD],
    "set_one_signal": [RELEASE],
    "flush_puts": [FENCE, "st.volatile.global.u64"],
    "get_by_warp": [],
    "fetch_add_there": ["atom.acq_rel.sys.global.add.u64"],
    "compare_swap_there": ["atom.acq_rel.sys.global.cas.b64"],
    "add_there": ["atom.acq_rel.sys.global.add.u64"],
    "write_one_command": [ACQUIRE, *["st.release.sys.global.b128"] * 4],
    "read_one_lane": [LANE],
    "read_one_command": [LANE] * 4,
    "finish_one_command": DONE,
    "carry_out": [LANE, *DONE],
}

SMALL_SENDS = ("send_small_by_warp", "send_small_by_block")
# Large messages are in these, too.
SENDS = ("send_by_warp", "send_by_block")
RECEIVES = ("recv_by_warp", "recv_by_block")
BY_CLUSTER = "exchange_by_cluster"  # from sm_90 on

ENTRY = re.compile(r"\.visible \.entry (\w+)\((.*?)^\}", re.MULTILINE | re.DOTALL)
ACCESS = re.compile(
    r"^\s*(?:@\S+\s+)?\{?\s*((?:ld|st|atom|red|fence|membar)\.[\w.:]+)", re.MULTILINE
)
BARRIER = re.compile(r"^\s*(bar(?:rier)?\.[\w.:]+)", re.MULTILINE)
STRONG = re.compile(r"\.(?:relaxed|acquire|release|acq_rel|volatile|mmio|sc)\b|^membar|^fence")


def find_nvcc() -> str | None:
    """Find nvcc as cmake/FindNvcc.cmake does: ONEHOP_NVCC, the wheels, PATH."""
    wanted = os.environ.get("ONEHOP_NVCC")
    if wanted and wanted != "system":
        return wanted
    wheels = (path for place in sys.path for path in Path(place).glob("nvidia/cu1*/bin/nvcc"))
    first = None if wanted else next(wheels, None)
    return str(first) if first else shutil.which("nvcc", path=search_path())


def search_path() -> str:
    return os.environ.get("PATH", "") + os.pathsep + "/usr/local/cuda/bin"


NVCC = find_nvcc()
# Of which other tests and builds may take a part.
COMPILE_SECONDS = 200
pytestmark = [
    pytest.mark.skipif(NVCC is None, reason="no nvcc: ONEHOP_NVCC, its wheels, PATH"),
    pytest.mark.timeout(COMPILE_SECONDS + 50),
]


def compile_to(
    kind: str, target: Path, source: Path = SOURCE, gpu: str = "sm_80", define: str = ""
) -> str:
    folders = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}"]
    command = [NVCC, "-std=c++20", f"-arch={gpu}", *folders, kind, "-Xptxas=-v"]
    if define:
        command.append(f"-D{define}")
    done = subprocess.run(
        [*command, "-Werror=all-warnings", "-o", target, source],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMPILE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    ptx = tmp_path_factory.mktemp("ptx") / "primitives.ptx"
    compile_to("--ptx", ptx)
    return dict(ENTRY.findall(ptx.read_text()))


@pytest.fixture(scope="module")
def kernels(bodies: dict[str, str]) -> dict[str, list[str]]:
    """All accesses and fences of each kernel."""
    return {name: ACCESS.findall(body) for name, body in bodies.items()}


@pytest.fixture(scope="module")
def steps(bodies: dict[str, str]) -> dict[str, list[str]]:
    """Accesses that are not weak, fences, and barriers; but not what tells the host of a fault."""
    found = {}
    for name, body in bodies.items():
        each = re.compile(f"(?:{ACCESS.pattern})|(?:{BARRIER.pattern})", re.MULTILINE)
        all_steps = [access or barrier for access, barrier in each.findall(body)]
        strong = [step for step in all_steps if STRONG.search(step) or BARRIER.search(step)]
        told = "|".join(TOLD)
        text = "|".join(strong).replace(f"{MARK}|{told}", "told").replace(told, "told")
        found[name] = text.split("|")
    return found


def test_every_kernel_is_looked_at(kernels: dict[str, list[str]]) -> None:
    looked_at = {*EXPECTED, *SMALL_SENDS, *SENDS, *RECEIVES}
    assert set(kernels) == looked_at
    written = set(re.findall(r"^KERNEL\((\w+)\)", SOURCE.read_text(), re.MULTILINE))
    assert written == {*looked_at, BY_CLUSTER}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_order_is_in_the_instructions(kernels: dict[str, list[str]], name: str) -> None:
    assert [access for access in kernels[name] if STRONG.search(access)] == EXPECTED[name]


def test_words_of_any_memory_take_the_widest_accesses(kernels: dict[str, list[str]]) -> None:
    # Aligned; misaligned, from the two words around it; the bytes of the first and last word.
    loads = [each for each in kernels["load_any_word"] if not each.startswith("ld.param")]
    assert sorted(loads) == ["ld.global.u32"] * 3 + ["ld.global.u8", "st.global.u32"]
    stores = [each for each in kernels["store_any_word"] if not each.startswith("ld.param")]
    assert "st.global.u32" in stores
    assert stores.count("st.global.u16") == 3, "two of an even address, one of an odd one"


@pytest.mark.parametrize("name", SMALL_SENDS)
def test_a_small_message_needs_no_fence(steps: dict[str, list[str]], name: str) -> None:
    order = steps[name]
    assert LINE in order
    assert ACQUIRE in order, "credit"
    assert not {FENCE, RELEASE, SIGNAL, LOAD_LINE} & set(order)


@pytest.mark.parametrize("name", SENDS)
def test_what_a_send_fences_and_what_it_releases(steps: dict[str, list[str]], name: str) -> None:
    order = steps[name]
    # The ending of a put, behind the group, or by the last team; chunks, as the lane is given back.
    fences = [i for i, step in enumerate(order) if step == FENCE]
    assert len(fences) == 3
    assert any(BARRIER.search(order[i - 1]) and order[i + 1] == LINE for i in fences)
    # The word of a chunk, behind all of the group.
    (chunk,) = [i for i, step in enumerate(order) if step == RELEASE]
    assert BARRIER.search(order[chunk - 1])
    assert SIGNAL not in order


@pytest.mark.parametrize("name", RECEIVES)
def test_what_a_receive_fences_and_what_it_releases(steps: dict[str, list[str]], name: str) -> None:
    order = steps[name]
    # Before the peer is told of the target; and chunks, as a lane is given back.
    fences = [i for i, step in enumerate(order) if step == FENCE]
    assert len(fences) == 2
    assert LINE in order[fences[0] + 1 : fences[0] + 3]
    # The ending of a put, before the group's barrier.
    (ending,) = [i for i, step in enumerate(order) if step == LANE]
    assert any(BARRIER.search(step) for step in order[ending + 1 : ending + 4])
    # An emptied chunk, behind all of the group; credit, after small and large messages and at last.
    releases = [i for i, step in enumerate(order) if step == RELEASE]
    assert 2 <= len(releases) <= 4
    assert any(BARRIER.search(order[i - 1]) for i in releases)
    assert SIGNAL not in order


def test_a_signal_comes_behind_the_group_and_is_seen_by_the_group(
    steps: dict[str, list[str]], bodies: dict[str, str]
) -> None:
    assert steps["put_and_signal"][-2:] == ["bar.warp.sync", SIGNAL]
    assert steps["wait_for_signal"][-1] == "bar.warp.sync"
    body = bodies["wait_for_signal"]
    assert body.rindex("bar.warp.sync") < body.rindex("ld.global.u64")


def test_a_relaxed_signal_waits_for_nothing(steps: dict[str, list[str]]) -> None:
    # The barrier is the put's, before its bytes.
    assert steps["put_and_signal_relaxed"] == ["bar.warp.sync", RELAXED_SIGNAL]


def test_reads_of_signals_end_with_a_barrier_and_stores_begin_with_one(
    steps: dict[str, list[str]],
) -> None:
    for name in ("wait_until_signal", "read_one_signal"):
        assert steps[name][-1] == "bar.warp.sync", name
    assert steps["set_one_signal"][-2:] == ["bar.warp.sync", RELEASE]
    barriers = ["bar.warp.sync", FENCE, "bar.warp.sync", "st.volatile.global.u64"]
    assert steps["flush_puts"][-4:] == barriers
    assert steps["get_by_warp"] == ["bar.warp.sync", "bar.warp.sync"]


def test_votes_of_a_warp_come_behind_a_barrier(bodies: dict[str, str]) -> None:
    for name in ("send_by_warp", "recv_by_warp"):
        order = re.findall(r"\b(vote\.sync|shfl\.sync|bar\.warp\.sync)", bodies[name])
        votes = [i for i, step in enumerate(order) if step == "vote.sync"]
        assert votes
        assert all(order[i - 1] == "bar.warp.sync" for i in votes), name


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90"])
def test_all_of_it_compiles_and_nothing_is_spilled(tmp_path: Path, gpu: str) -> None:
    said = compile_to("--cubin", tmp_path / "primitives.cubin", gpu=gpu)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert len(spills) >= len({*EXPECTED, *SMALL_SENDS, *SENDS, *RECEIVES})
    assert set(spills) == {("0", "0")}
    assert (BY_CLUSTER in said) == (gpu == "sm_90")


def test_a_kernel_that_sends_and_receives_keeps_its_lanes_in_registers(tmp_path: Path) -> None:
    # What spills hundreds of bytes takes half as long again. A cluster is at its limit.
    said = compile_to("--cubin", tmp_path / "bench.cubin", BENCH, "sm_90", "BENCH_TIMED_PINGPONGS")
    entry = r"entry function 'bench_lane_(\w+)'.*?(\d+) bytes spill stores"
    spills = {name: int(size) for name, size in re.findall(entry, said, re.DOTALL)}
    assert {name: spills[name] for name in ("warp", "block")} == {"warp": 0, "block": 0}
    assert spills["cluster"] <= 64


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90"])
def test_groups_of_every_kind_compile_beside_cooperative_groups(tmp_path: Path, gpu: str) -> None:
    said = compile_to("--cubin", tmp_path / "groups.cubin", GROUPS, gpu)
    kernels = re.findall(r"Compiling entry function '(by_\w+)'", said)
    assert sorted(kernels) == sorted(re.findall(r"KERNEL\((by_\w+)\)", GROUPS.read_text()))


def test_kernels_of_the_guide_compile(tmp_path: Path) -> None:
    said = compile_to("--cubin", tmp_path / "guide.cubin", GUIDE, "sm_90")
    assert len(re.findall("Compiling entry function", said)) == GUIDE.read_text().count(
        "__global__"
    )


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    ptx = tmp_path_factory.mktemp("groups") / "groups.ptx"
    compile_to("--ptx", ptx, GROUPS)
    return dict(ENTRY.findall(ptx.read_text()))


def test_warps_meet_and_vote_at_their_own_barrier(groups: dict[str, str]) -> None:
    barriers = set(BARRIER.findall(groups["by_warps"]))
    assert barriers == {"barrier.sync", "barrier.red.or.pred"}


def test_the_last_block_of_a_grid_signals_behind_the_puts_of_all(groups: dict[str, str]) -> None:
    body = groups["by_grid_with_one_signal"]
    order = [access for access in ACCESS.findall(body) if STRONG.search(access)]
    counts = {"atom.acq_rel.gpu.global.cas.b64", "atom.acq_rel.gpu.global.add.u64"}
    assert counts <= set(order)
    for count in counts:
        assert order.index(FENCE) < order.index(count) < order.index(SIGNAL)
    assert (order.count(FENCE), order.count(SIGNAL)) == (1, 1)
    assert re.search(r"bar(?:rier)?\.sync[^;]*;\s[^}]*?fence\.acq_rel\.sys", body)


def test_all_blocks_of_a_grid_get_behind_the_wait_of_one(groups: dict[str, str]) -> None:
    body = groups["by_grid_with_one_wait"]
    order = [access for access in ACCESS.findall(body) if STRONG.search(access)]
    # The first block takes; what it acquired it hands on by the word, to which each block adds.
    take = order.index("atom.acquire.gpu.global.cas.b64")
    assert order.index("atom.acq_rel.gpu.global.cas.b64") < order.index(ACQUIRE, 1) < take
    assert "atom.acq_rel.gpu.global.add.u64" in order[take:]
    assert not {FENCE, SIGNAL, RELAXED_SIGNAL} & set(order)
    # The bytes are read behind a barrier of the block that follows the last access to the word.
    last = max(match.start() for match in ACCESS.finditer(body) if STRONG.search(match[1]))
    barrier = BARRIER.search(body, last)
    assert barrier
    copied = body.index("call.uni", last)
    assert barrier.start() < copied


def test_a_copy_stays_between_the_lane_and_the_fence(kernels: dict[str, list[str]]) -> None:
    accesses = [access for access in kernels["carry_out"] if not access.startswith("ld.param")]
    assert accesses == [LANE, "ld.global.u64", "st.global.u64", *DONE]


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """All accesses and fences of the kernels of batches, but for their arguments."""
    ptx = tmp_path_factory.mktemp("ptx") / "batch.ptx"
    compile_to("--ptx", ptx, BATCH)
    return {
        name: [access for access in ACCESS.findall(body) if not access.startswith("ld.param")]
        for name, body in ENTRY.findall(ptx.read_text())
    }


def test_a_batch_is_counted_behind_its_bytes_and_the_word_behind_all(
    batches: dict[str, list[str]],
) -> None:
    order = batches["onehop_batch"]
    assert order[-4:] == [FENCE, "atom.acq_rel.gpu.global.add.u64", STORE, RELEASE]
    assert not [access for access in order[:-4] if STRONG.search(access)]


@pytest.mark.parametrize("kernel", ["onehop_stream_batch", "onehop_stream_few_blocks"])
def test_a_batch_of_a_stream_ends_with_its_bytes_visible(
    batches: dict[str, list[str]], kernel: str
) -> None:
    order = batches[kernel]
    assert order[-1] == FENCE
    assert not [access for access in order[:-1] if STRONG.search(access)]


def test_the_worker_fences_before_each_word_and_before_its_last_look(tmp_path: Path) -> None:
    ptx = tmp_path / "worker.ptx"
    compile_to("--ptx", ptx, WORKER)
    ((name, body),) = ENTRY.findall(ptx.read_text())
    assert name == "onehop_worker"
    order = [access for access in ACCESS.findall(body) if STRONG.search(access)]
    say = "st.release.sys.global.u64"
    assert order[:2] == ["ld.acquire.sys.global.u64", say]  # where to begin; HERE
    assert order[-2:] == [say, say]  # how long it stayed; GONE
    assert set(order) == {order[0], say, LANE, *DONE, "fence.sc.sys"}
    fences = [i for i, access in enumerate(order) if access == DONE[0]]
    assert fences
    # Its done word need not be there.
    assert all(order[i : i + 3] == DONE for i in fences)
    assert order.count(STORE) == 2 * len(fences)
    leaving = [i for i, access in enumerate(order) if access == "fence.sc.sys"]
    assert leaving
    assert all(order[i - 1] == say for i in leaving)


def test_a_ticket_is_whole_and_is_given_up_before_the_look_whether_it_is_taken(
    tmp_path: Path,
) -> None:
    ptx = tmp_path / "proxy.ptx"
    compile_to("--ptx", ptx, PROXY)
    ((name, body),) = ENTRY.findall(ptx.read_text())
    assert name == "onehop_proxy"
    order = [access for access in ACCESS.findall(body) if STRONG.search(access)]
    relaxed = "ld.relaxed.sys.global.u64"
    # The fields, a fence, and the number; where it waits, the answer.
    handed_in = order.index(FENCE)
    assert order[handed_in - 4 : handed_in + 3] == [STORE] * 4 + [FENCE, STORE, ACQUIRE]
    given_up = order.index("fence.sc.sys")
    assert order[given_up - 1 : given_up + 2] == [STORE, "fence.sc.sys", relaxed]
    assert order.count(FENCE) == order.count("fence.sc.sys") == 1
    assert order[-1] == RELEASE  # the place


def test_an_atomic_of_a_stream_is_of_system_scope(tmp_path: Path) -> None:
    ptx = tmp_path / "atomic.ptx"
    compile_to("--ptx", ptx, ATOMIC)
    ((name, body),) = ENTRY.findall(ptx.read_text())
    assert name == "onehop_atomic"
    strong = [access for access in ACCESS.findall(body) if STRONG.search(access)]
    operations = {"atom.acq_rel.sys.global.add.u64", "atom.acq_rel.sys.global.cas.b64"}
    assert sorted(strong) == sorted([*operations, STORE])
    assert strong[-1] == STORE, "what was there goes to its place behind both"


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The kernels of streams by architecture."""
    found = {}
    for gpu in ("sm_80", "sm_90"):
        ptx = tmp_path_factory.mktemp("ptx") / "stream.ptx"
        compile_to("--ptx", ptx, STREAM, gpu)
        found[gpu] = dict(ENTRY.findall(ptx.read_text()))
    return found


def test_a_look_at_a_lane_is_a_release_and_an_acquire(streams: dict[str, dict[str, str]]) -> None:
    order = ACCESS.findall(streams["sm_80"]["onehop_lanes"])
    # Unrolled or not: of both halves.
    looks = [access for access in order if ".or.b64" in access]
    assert set(looks) == {"atom.acq_rel.gpu.global.or.b64"}


@pytest.mark.parametrize("name", SENDS)
def test_a_large_send_takes_its_half_by_an_acquire_before_it_looks_a_region_up(
    steps: dict[str, list[str]], name: str
) -> None:
    order = steps[name]
    take = order.index(TAKE)
    # Behind the announcement, the two lines of the posting; then the table.
    wanted = [LINE, LOAD_LINE, LOAD_LINE]
    found = [i for i in range(len(order)) if order[i : i + 3] == wanted]
    assert found
    assert take < found[0]


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90"])
def test_a_kernel_that_begins_early_waits_before_it_lets_the_next_one(
    streams: dict[str, dict[str, str]], gpu: str
) -> None:
    found = streams[gpu]
    for name in ("onehop_stream", "onehop_stream_large", "onehop_stream_few", "onehop_stream_many"):
        steps = re.findall(r"griddepcontrol\.(\w+)", found[name])
        if gpu == "sm_80":
            assert not steps
            continue
        assert steps[0] == "wait"
        # Behind each take of a half, and before a signal or a wait for one.
        assert steps.count("launch_dependents") == 4


def test_a_stream_guesses_the_target_behind_the_claim_of_the_lane(
    streams: dict[str, dict[str, str]],
) -> None:
    body = streams["sm_90"]["onehop_stream_large"]
    each = re.compile(rf"(?:{ACCESS.pattern})|(?:{BARRIER.pattern})|(griddepcontrol\.\w+)", re.M)
    order = [access or barrier or early for access, barrier, early in each.findall(body)]
    strong = [step for step in order if STRONG.search(step) or not ACCESS.match(step)]
    # The size of the table, the posting's first line, and the region's entry: behind the barrier by
    # which the leader shares that it has the half, and before earlier work of the stream has ended.
    wanted = [LOAD, *[LOAD_LINE] * 3, "griddepcontrol.wait"]
    (guess,) = [i for i in range(len(strong)) if strong[i : i + len(wanted)] == wanted]
    assert BARRIER.match(strong[guess - 1])
    assert TAKE in strong[:guess]


def test_only_a_small_receive_ends_without_a_release_of_its_cluster(
    streams: dict[str, dict[str, str]],
) -> None:
    relaxed = "barrier.cluster.arrive.relaxed"
    counts = {name: body.count(relaxed) for name, body in streams["sm_90"].items()}
    assert counts.pop("onehop_stream") == 1
    assert set(counts.values()) == {0}, "their votes and puts need it"
    # A fault that is stored for the leader is fenced, because the barrier does not order it.
    tell = r"st\.relaxed\.cluster\.shared::cluster"
    steps = rf"{tell}|fence\.acq_rel\.cluster|barrier\.cluster\.(?:arrive\.relaxed|wait\.acquire)"
    order = re.findall(steps, streams["sm_90"]["onehop_stream"])
    told = [i for i, step in enumerate(order) if re.match(tell, step)]
    assert told
    assert all(order[i + 1] == "fence.acq_rel.cluster" for i in told)
    end = order.index("barrier.cluster.arrive.relaxed")
    assert max(told) < end
    assert order[end + 1] == "barrier.cluster.wait.acquire"
