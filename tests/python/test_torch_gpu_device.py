# SPDX-License-Identifier: Apache-2.0
"""All of onehop/device.cuh on real GPUs: every kind of group, grids, signals, get, flush, probe."""

import ctypes
import importlib
import os
import sys
import time
from pathlib import Path

import pytest
from processes import run_pair, run_ranks

sys.path.append(str(Path(__file__).parents[2] / "examples"))
raw_kernel = importlib.import_module("raw_kernel")
torch = pytest.importorskip("torch")
COUNT = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(
    COUNT < 1 or "ONEHOP_CUDA_LIBRARY" in os.environ, reason="needs a GPU and PyTorch"
)
# A GPU that is shared changes between the processes at each turn.
two_gpus = pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")
GPUS = ("cuda:0", f"cuda:{1 % COUNT}" if COUNT else "")
SOURCE = Path(__file__).with_name("device_kernels.cu")
LANE = 2
SIZES = (0, 8, 100, 10_001, 300_000)
# By group: blocks, threads of a block, and whether all blocks are launched cooperatively.
GROUPS = {
    "by_thread": (1, 64, False),
    "by_warp": (1, 64, False),
    "by_warps": (1, 256, False),
    "by_block": (1, 512, False),
    "by_cluster": (4, 256, False),
    "many_by_warp": (1, 64, False),
    "many_by_block": (1, 512, False),
    "many_by_cluster": (4, 256, False),
    "by_grid": (6, 256, False),
}
COOPERATIVE_GROUPS = {
    "by_tile": (1, 128, False),
    "by_coalesced_threads": (1, 64, False),
    "by_thread_block": (1, 128, False),
    "by_part_of_a_warp": (1, 64, False),
    "by_cooperative_grid": (3, 128, True),
}


def find_cuda_headers():
    """Find the folder of CUDA's headers: the toolkit's, or that of its wheels."""
    homes = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *sys.path]
    for home in map(Path, homes):
        for path in (home / "include", *home.glob("nvidia/cu1*/include")):
            if (path / "cooperative_groups.h").exists():
                return path
    return None


def compiled(cuda_headers=None):
    """Compile the source for the first GPU, which takes longer than any test of it."""
    major, minor = torch.cuda.get_device_capability(0)
    source = SOURCE.read_text()
    folders = []
    if cuda_headers is not None:
        source = f"#include <cooperative_groups.h>\n{source}"
        folders = [str(cuda_headers), str(cuda_headers / "cccl")]
    return raw_kernel.compile_kernel(source, f"sm_{major}{minor}", folders)


@pytest.fixture(scope="module")
def image():
    return compiled()


class Kernels:
    """The kernels of the source on the current GPU, and where they say what was wrong."""

    def __init__(self, image):
        torch.zeros(1, device="cuda")  # now there is a context
        self.image = image
        self.loaded = {}
        self.fault = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.place = torch.zeros(1, dtype=torch.int64, device="cuda")

    def launch(self, name, shape, *arguments, cooperative=False):
        if name not in self.loaded:
            self.loaded[name] = raw_kernel.Kernel(self.image, name)
        kernel = self.loaded[name]
        own = (*(passed(one) for one in arguments), passed(self.fault))
        pointers = [ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in own]
        params = (ctypes.c_void_p * len(pointers))(*pointers)
        blocks, threads = shape
        one = ctypes.c_uint(1)
        sizes = (
            ctypes.c_uint(blocks),
            one,
            one,
            ctypes.c_uint(threads),
            one,
            one,
            ctypes.c_uint(0),
        )
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if cooperative:
            call = kernel.driver.cuLaunchCooperativeKernel
            kernel.check(call(kernel.function, *sizes, stream, params))
        else:
            call = kernel.driver.cuLaunchKernel
            kernel.check(call(kernel.function, *sizes, stream, params, None))

    def check(self, what=""):
        assert self.fault.item() == 0, what


def passed(value):
    """Return an argument of a kernel: tensors are passed by address, numbers in 8 bytes."""
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_uint64(value) if isinstance(value, int) else value


def handle_of(peer):
    return (ctypes.c_char * 128).from_buffer_copy(bytes(peer.device_handle(LANE)))


def content(size, seed, side):
    """Fill a tensor with bytes that follow from its size, a seed and the sender."""
    index = torch.arange(size, device="cuda", dtype=torch.int64)
    return ((index * 7 + index // 253 + seed * 31 + size * 3 + side * 101) % 251).to(torch.uint8)


def has_clusters():
    return torch.cuda.get_device_capability()[0] >= 9


def begin(side, image):
    torch.cuda.set_device(side.number % COUNT)
    kernels = Kernels(image)
    side.peer.warmup(timeout=30)
    return kernels, handle_of(side.peer)


def exchange(side, image, groups):
    kernels, lane = begin(side, image)
    for name, (blocks, threads, cooperative) in groups.items():
        if name.endswith("by_cluster") and not has_clusters():
            continue
        for seed, size in enumerate(SIZES):
            out, expected = content(size, seed, side.number), content(size, seed, 1 - side.number)
            into = torch.full((size + 16,), 0xEE, dtype=torch.uint8, device="cuda")
            arguments = (lane, side.number, out, into, size, kernels.place)
            kernels.launch(name, (blocks, threads), *arguments, cooperative=cooperative)
            kernels.check((name, size))
            assert torch.equal(into[:size], expected), (name, size)
            assert bool((into[size:] == 0xEE).all()), (name, size)
    assert side.peer.async_error() is None


def test_every_group_exchanges_messages(image):
    run_pair(exchange, exchange, image, GROUPS, devices=GPUS)


def test_cooperative_groups_exchange_messages():
    headers = find_cuda_headers()
    if headers is None:
        pytest.skip("no cooperative_groups.h: the CUDA toolkit, or nvidia-cuda-runtime")
    run_pair(exchange, exchange, compiled(headers), COOPERATIVE_GROUPS, devices=GPUS)


@pytest.mark.parametrize("name", ["share_by_warps", "share_by_cluster"])
def test_groups_share_and_vote(image, name):
    torch.cuda.set_device(0)
    if name == "share_by_cluster" and not has_clusters():
        pytest.skip("needs sm_90")
    kernels = Kernels(image)
    kernels.launch(name, (8, 256), 50_000)
    kernels.check()


# ---- Puts by all blocks of a grid


def map_memory(side, size):
    """Return memory of ours, the peer's as an oh_remote_memory, and what ends both."""
    memory = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    remote = side.peer.attach(side.take(), timeout=30)

    def leave():
        side.sync()
        remote.detach()
        side.sync()
        region.deregister(timeout=30)

    return memory, (ctypes.c_uint64 * 2)(*remote.device_memory()), leave


def put_rounds(side, image, rounds):
    kernels, lane = begin(side, image)
    shapes = ((1, 100), (7, 100_001), (8, 100_001), (64, 4_000_000))  # blocks, bytes
    memory, there, leave = map_memory(side, shapes[-1][1])
    out = torch.empty_like(memory)
    for blocks, size in shapes:
        if side.number == 0:
            kernels.launch("put_rounds", (blocks, 256), lane, there, out, size, rounds)
            kernels.launch("take_all", (1, 64), lane, 5, rounds)
        else:
            kernels.launch("look_at_rounds", (blocks + 1, 256), lane, memory, size, rounds)
            kernels.launch("take_all", (1, 64), lane, 3, rounds)
        kernels.check((blocks, size))
        side.sync()
    leave()


def test_a_grid_puts_with_one_signal_a_round(image):
    run_pair(put_rounds, put_rounds, image, 50, devices=GPUS)


def put_and_get(side, image):
    kernels, lane = begin(side, image)
    bytes_, size = 100_003, 131_072
    memory, there, leave = map_memory(side, size)
    if side.number == 0:
        out, back = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        kernels.launch("put_and_get", (1, 256), lane, there, out, back, bytes_)
    else:
        kernels.launch("change_bytes", (1, 256), lane, memory, bytes_, size)
    kernels.check()
    leave()


def test_get_flush_and_signals_that_are_set(image):
    run_pair(put_and_get, put_and_get, image, devices=GPUS)


# ---- Looks for messages


def probe(side, image):
    kernels, lane = begin(side, image)
    sizes = (40, 0, 10_000, 2_000_000, 8)
    if side.number == 0:
        stream = torch.cuda.Stream()
        outs = [torch.full((size,), 1, dtype=torch.uint8, device="cuda") for size in sizes]
        torch.cuda.synchronize()
        for out in outs:
            time.sleep(0.01)
            side.peer.on(stream).send(out, lane=LANE, timeout=30)
            stream.synchronize()
    else:
        into = torch.zeros(2_000_000, dtype=torch.uint8, device="cuda")
        found = torch.zeros(len(sizes), dtype=torch.int64, device="cuda")
        missed = torch.zeros(1, dtype=torch.int64, device="cuda")
        arguments = (lane, into, 2_000_000, len(sizes), found, missed)
        kernels.launch("probe_and_receive", (1, 256), *arguments)
        kernels.check()
        assert tuple(found.tolist()) == sizes
        assert missed.item() > 0
    side.sync()


def test_a_kernel_computes_until_a_message_is_there(image):
    run_pair(probe, probe, image, devices=GPUS)


def loop_until_reset(side, image):
    kernels, lane = begin(side, image)
    into = torch.zeros(64, dtype=torch.uint8, device="cuda")
    found = torch.zeros(1, dtype=torch.int64, device="cuda")
    missed = torch.zeros(1, dtype=torch.int64, device="cuda")
    if side.number == 1:
        torch.cuda.synchronize()
        kernels.launch("probe_and_receive", (1, 64), lane, into, 64, 1, found, missed)
    side.sync()
    side.peer.reset_lane(LANE, timeout=30)
    # OH_LANE_ABORTED
    assert kernels.fault.item() == (4 if side.number == 1 else 0)
    side.sync()


def test_a_reset_ends_a_loop_that_looks(image):
    run_pair(loop_until_reset, loop_until_reset, image, devices=GPUS)


# ---- Messages by all blocks of a grid


def exchange_many(side, image):
    kernels, lane = begin(side, image)
    small, large, messages = 5000, 1_500_000, 12
    for launch, blocks in enumerate((5, 2, 16, 16)):
        if side.number == 0:
            out = content(messages * large, launch, 0)
            kernels.launch("send_many", (blocks, 256), lane, out, small, large, messages)
            kernels.check(launch)
        else:
            into = torch.full((messages * large,), 0xEE, dtype=torch.uint8, device="cuda")
            shape = (2 * blocks - 1, 128)
            kernels.launch("recv_many", shape, lane, into, small, large, messages)
            kernels.check(launch)
            expected = content(messages * large, launch, 0).view(messages, large)
            expected[::2, small:] = 0xEE
            assert torch.equal(into.view(messages, large), expected), launch
    assert side.peer.async_error() is None


def test_messages_by_grids_of_several_sizes_follow_each_other(image):
    run_pair(exchange_many, exchange_many, image, devices=GPUS)


# All replays of a graph have the same launch number, by which blocks know each other.
def exchange_in_replays(side, image):
    kernels, lane = begin(side, image)
    small, large, messages = 5000, 300_000, 6
    data = torch.zeros(messages * large, dtype=torch.uint8, device="cuda")
    kernel = "recv_many" if side.number else "send_many"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.launch(kernel, (5, 128), lane, data, small, large, messages)
    for replay in range(5):
        expected = content(messages * large, replay, 0)
        data.fill_(0xEE) if side.number else data.copy_(expected)
        torch.cuda.synchronize()
        graph.replay()
        kernels.check(replay)
        if side.number:
            expected.view(messages, large)[::2, small:] = 0xEE
            assert torch.equal(data, expected), replay
    assert side.peer.async_error() is None


def test_messages_by_grids_in_replays_of_a_graph(image):
    run_pair(exchange_in_replays, exchange_in_replays, image, devices=GPUS)


# ---- All ranks of a communicator


def meet_often(comm, image):
    torch.cuda.set_device(comm.rank)
    kernels = Kernels(image)
    comm.warmup(timeout=30)
    mine = torch.zeros(comm.size, dtype=torch.int64, device="cuda")
    region = comm.endpoint.register(mine)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent = [comm.isend(region.descriptor, rank) for rank in others]
    places, remotes = torch.zeros(comm.size, 2, dtype=torch.int64), []
    for rank in others:
        descriptor = bytearray(4096)
        length = comm.recv(descriptor, rank, timeout=30).nbytes
        remotes.append(comm.peer(rank).attach(bytes(descriptor[:length]), timeout=30))
        places[rank] = torch.tensor(remotes[-1].device_memory())
    for request in sent:
        request.wait(timeout=30)
    places = places.cuda()
    handle = comm.device_handle(LANE)
    value = (ctypes.c_char * len(bytes(handle))).from_buffer_copy(bytes(handle))
    shapes = {"meet_by_warp": (1, 32), "meet_by_block": (1, 256)}
    if has_clusters():
        shapes["meet_by_cluster"] = (4, 128)
    for name, shape in shapes.items():
        mine.zero_()
        torch.cuda.synchronize()
        comm.barrier(timeout=30)
        kernels.launch(name, shape, value, places, mine, 1000)
        kernels.check(name)
    assert all(comm.peer(rank).async_error() is None for rank in others)
    comm.barrier(timeout=30)


@two_gpus
def test_a_barrier_of_ranks_orders_what_they_store(image):
    ranks = min(4, COUNT)
    run_ranks(ranks, meet_often, image, devices=[f"cuda:{rank}" for rank in range(ranks)])
