# SPDX-License-Identifier: Apache-2.0
"""What kernels of the caller's own use a peer by, on the fake driver."""

import struct

import onehop
import pytest
from fake_gpu import CudaArray, Driver
from processes import run_pair, run_ranks

pytestmark = pytest.mark.usefixtures("fake_gpus")
GPUS = (0, 1)
PATTERN = bytes(range(200))

WORDS = ("layout", "lane", "flags", "ring_shift")
ADDRESSES = ("lines_at", "chunks_at", "mine", "theirs")
CHUNKS = ("chunk_slots", "chunk_shift", "token", "follows")
REST = ("notice", "imports", "timeout_ns", "small_max", "signals", "their_signals")
# Of the struct oh_lane_handle: offset -> name and format.
FIELDS = {
    **{4 * i: (name, "I") for i, name in enumerate(WORDS)},
    **{16 + 8 * i: (name, "Q") for i, name in enumerate(ADDRESSES)},
    **{48 + 4 * i: (name, "I") for i, name in enumerate(CHUNKS)},
    **{64 + 8 * i: (name, "Q") for i, name in enumerate(REST)},
}


def look_at_handles(side):
    side.peer.warmup(timeout=30)
    handles = [side.peer.device_handle(lane) for lane in (0, 15)]
    for lane, handle in zip((0, 15), handles, strict=True):
        plain = bytes(handle)
        assert len(plain) == 128
        for offset, (name, kind) in FIELDS.items():
            assert struct.unpack_from(kind, plain, offset)[0] == getattr(handle, name), name
        assert (handle.layout, handle.lane) == (4, lane)
        assert handle.mine != 0
        assert handle.theirs != 0
        assert handle.timeout_ns > 0
        assert repr(handle) == f"<onehop.LaneHandle lane {lane} of peer {side.peer.id}>"
        with pytest.raises(TypeError):
            int(handle)
    assert handles[0].mine != handles[1].mine
    info = side.peer.stream_info()
    assert (info.ready, info.path, info.why_not) == (True, "nvlink", "")
    assert handles[0].small_max == info.small_max > 0
    assert info.stream_buffered >= info.small_max


def test_handles_for_kernels():
    run_pair(look_at_handles, look_at_handles, devices=GPUS)


def look_at_communicator(comm):
    handle = comm.device_handle(3)
    plain = bytes(handle)
    assert len(plain) == 16 + 64 * 128
    assert struct.unpack_from("II", plain) == (comm.rank, 3) == (handle.rank, handle.size)
    assert repr(handle) == f"<onehop.CommunicatorHandle rank {comm.rank} of 3>"
    for rank in range(64):
        of_rank = plain[16 + 128 * rank :][:128]
        if rank >= 3 or rank == comm.rank:
            assert of_rank == bytes(128)
        else:
            assert of_rank == bytes(comm.peer(rank).device_handle(3))
    with pytest.raises(onehop.InvalidArgument, match="lanes are 0 to 15"):
        comm.device_handle(16)
    comm.barrier(timeout=30)


def test_a_communicator_for_kernels():
    run_ranks(3, look_at_communicator, devices=(0, 1, 0))


def map_remote_memory(side):
    remote = side.peer.attach(side.take(), timeout=30)
    base, size = remote.device_memory()
    assert size == len(remote) == 4096
    assert base != 0
    assert remote[100:300].device_memory() == (base + 100, 200)
    Driver(side.number).write(base + 100, PATTERN)
    side.sync()
    remote.detach()
    with pytest.raises(onehop.InvalidArgument, match="detached"):
        remote.device_memory()


def show_memory(side):
    array = CudaArray(Driver(side.number), bytes(4096))
    region = side.endpoint.register(array)
    side.give(region.descriptor)
    side.sync()
    assert array.bytes()[100:300] == PATTERN


def test_a_region_as_kernels_reach_it():
    run_pair(map_remote_memory, show_memory, devices=GPUS)
