# SPDX-License-Identifier: Apache-2.0
"""onehop.torch on real GPUs: two ranks on one GPU, and on two where there are two."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from processes import DEADLINE, Group, Meeting, _spawn

torch = pytest.importorskip("torch", reason="torch is not installed")
if "ONEHOP_CUDA_LIBRARY" in os.environ or not torch.cuda.is_available():
    pytest.skip("needs a GPU, and torch with CUDA", allow_module_level=True)

import onehop.torch  # noqa: E402, F401 - makes the backend known
import torch.distributed as dist  # noqa: E402

GPUS = torch.cuda.device_count()
two_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
PLACES = [(0, 0), pytest.param((0, 1), marks=two_gpus)]
SIZES = (0, 1, 7, 4096, 65_537, 1 << 20, 5_000_003)
TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
LARGE = 4_000_000  # elements
LONG = 200_000_000  # cycles: about 0.1 s of a stream
A_WHILE = timedelta(seconds=DEADLINE / 4)
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_pipeline.py"


class Rank(Meeting):
    """One of two ranks."""

    def __init__(self, number, pipe, device):
        super().__init__(pipe)
        self.number, self.other = number, 1 - number
        self.device = torch.device("cuda", device)

    def full(self, value, size=LARGE, dtype=torch.float32):
        return torch.full((size,), value, dtype=dtype, device=self.device)


def warm(rank):
    """Launch each kernel of the tests once: a first launch waits for streams that stand still."""
    for dtype in (*TYPES, torch.uint8):
        tensor = rank.full(1, 8, dtype)
        assert torch.equal(tensor, tensor.clone())
    tensor = rank.full(1.0)
    tensor.mul_(2).add_(1).zero_().fill_(3)
    assert bool((tensor == 3).all())
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()


def expect_success(work):
    """Wait on the host: a stream that has gone on may be ahead of it."""
    assert work.wait(A_WHILE)
    assert work.is_success()


def run_rank(number, pipe, function, device, rendezvous, together):
    torch.cuda.set_device(device)
    dist.init_process_group(
        "onehop",
        init_method=f"file://{rendezvous}",
        rank=number,
        world_size=2,
        timeout=timedelta(seconds=DEADLINE / 2),
    )
    rank = Rank(number, pipe, device)
    warm(rank)
    rank.sync()
    value = function(rank)
    torch.cuda.synchronize()
    if together:
        rank.sync()  # none leaves before the other has looked
    dist.destroy_process_group()
    return value


def run_ranks(first, second, devices, tmp_path, killed=()):
    """Run a function in each of two ranks."""
    pipes = _spawn.Pipe()
    group = Group()
    for number, function in enumerate((first, second)):
        place = tmp_path / "rendezvous"
        group.start(run_rank, number, pipes[number], function, devices[number], place, not killed)
    return group.join(killed)


# ---- Messages


def exchange(rank):
    for size in SIZES:
        for dtype in TYPES:
            mine = rank.full(rank.number + 1, size, dtype)
            theirs = rank.full(0, size, dtype)
            work = dist.irecv(theirs, rank.other)
            dist.isend(mine, rank.other).wait()
            work.wait()
            assert torch.equal(theirs, rank.full(rank.other + 1, size, dtype)), (size, dtype)
    expect_success(work)
    assert work.source_rank() == rank.other
    # Blocking ones, of the two in turn; a message of host memory in the same group; any source.
    tensor = rank.full(5.0)
    host = torch.full((1000,), 6.0)
    if rank.number == 0:
        dist.send(tensor, 1)
        dist.send(host, 1, tag=2)
    else:
        into, there = rank.full(0.0), torch.zeros(1000)
        assert dist.recv(into) == 0
        dist.recv(there, 0, tag=2)
        assert torch.equal(into, tensor)
        assert torch.equal(there, host)
    # Both at once, and objects.
    theirs = rank.full(0.0)
    operations = [
        dist.P2POp(dist.isend, rank.full(float(rank.number)), rank.other),
        dist.P2POp(dist.irecv, theirs, rank.other),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert bool((theirs == rank.other).all())
    if rank.number == 0:
        dist.send_object_list(["word", {"a": 1}], 1)
    else:
        objects = [None, None]
        dist.recv_object_list(objects, 0)
        assert objects == ["word", {"a": 1}]


@pytest.mark.parametrize("devices", PLACES)
def test_messages(devices, tmp_path):
    run_ranks(exchange, exchange, devices, tmp_path)


# ---- Streams


def send_late(rank):
    """Send after the other side says that its host has gone on."""
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            tensor = rank.full(0.0)
            assert rank.take() == "gone on"
            # The stream is busy: the message must be what it makes in the end.
            torch.cuda._sleep(LONG)
            tensor.fill_(3.0)
            work = dist.isend(tensor, 1)
            work.wait()
            tensor.zero_()  # behind the send
            stream.synchronize()
        expect_success(work)


def go_on(rank):
    """Receive without a wait of the host; what the stream does next sees the message."""
    torch.empty_like(rank.full(0.0)).copy_(rank.full(0.0)).mul_(2)  # loads the kernels
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            into, copy = rank.full(0.0), rank.full(0.0)
            behind = torch.cuda.Event()
            stream.synchronize()
            work = dist.irecv(into, 0)
            work.block_current_stream()
            copy.copy_(into)
            copy.mul_(2)
            behind.record()
            # Nothing was sent, and we are here.
            assert not work.is_completed()
            assert not behind.query()
            rank.give("gone on")
            behind.synchronize()
            assert bool((copy == 6).all())
            expect_success(work)


@pytest.mark.parametrize("devices", PLACES)
def test_a_stream_waits_while_the_host_goes_on(devices, tmp_path):
    run_ranks(send_late, go_on, devices, tmp_path)


def send_while_busy(rank):
    """Wait for a send, and go on: the stream that makes its bytes is busy for a second."""
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            tensor = rank.full(0.0)
            stream.synchronize()
            rank.sync()  # the receive is posted
            torch.cuda._sleep(10 * LONG)
            tensor.fill_(3.0)
            work = dist.isend(tensor, 1)
            work.wait()
            assert not work.is_completed()
            tensor.zero_()  # behind the send
            rank.sync()  # its host has gone on, too
            stream.synchronize()
        expect_success(work)


def launch_behind_wait(rank):
    """Wait for the receive, and launch what was never launched: that waits for the device."""
    streams = (torch.cuda.current_stream(), torch.cuda.Stream())
    for stream, never_launched in zip(streams, (torch.lgamma, torch.digamma), strict=True):
        with torch.cuda.stream(stream):
            into = rank.full(0.0)
            stream.synchronize()
            work = dist.irecv(into, 0)
            rank.sync()
            work.wait()
            behind = torch.cuda.Event()
            behind.record()
            assert not work.is_completed()
            assert not behind.query()
            rank.sync()
            made = never_launched(into)
            stream.synchronize()
            expected = never_launched(torch.full((1,), 3.0))
            assert torch.allclose(made.cpu(), expected.expand(LARGE))
        expect_success(work)


@pytest.mark.parametrize("devices", PLACES)
def test_wait_leaves_the_message_to_the_stream(devices, tmp_path):
    run_ranks(send_while_busy, launch_behind_wait, devices, tmp_path)


def exchange_launching(rank):
    """Send, receive and launch for the first time, in turn, with no order between the ranks."""
    functions = (torch.erfinv, torch.i0, torch.sinc, torch.special.ndtri, torch.special.entr)
    for turn, never_launched in enumerate(functions):
        mine, theirs = rank.full(0.25 * (rank.number + 1)), rank.full(0.0)
        torch.cuda._sleep(LONG // 4)
        receive = dist.irecv(theirs, rank.other, tag=turn)
        send = dist.isend(mine, rank.other, tag=turn)
        receive.wait()
        made = never_launched(theirs)
        send.wait()
        mine.zero_()
        expected = never_launched(torch.full((1,), 0.25 * (rank.other + 1)))
        assert torch.allclose(made.cpu(), expected.expand(LARGE)), never_launched
        expect_success(receive)
        expect_success(send)


@pytest.mark.parametrize("devices", PLACES)
def test_first_launches_between_messages(devices, tmp_path):
    run_ranks(exchange_launching, exchange_launching, devices, tmp_path)


def send_and_leave(rank):
    group = dist.new_group()
    tensor = rank.full(0.0)
    torch.cuda.synchronize()
    rank.sync()
    torch.cuda._sleep(5 * LONG)
    tensor.fill_(3.0)
    dist.isend(tensor, 1, group=group).wait()
    dist.destroy_process_group(group)


def receive_and_leave(rank):
    group = dist.new_group()
    into = rank.full(0.0)
    torch.cuda.synchronize()
    work = dist.irecv(into, 0, group=group)
    rank.sync()
    work.wait()
    dist.destroy_process_group(group)
    assert bool((into == 3).all())
    assert work.is_success()


@pytest.mark.parametrize("devices", PLACES)
def test_a_group_ends_behind_its_messages(devices, tmp_path):
    run_ranks(send_and_leave, receive_and_leave, devices, tmp_path)


def send_for_futures(rank):
    for value in (1.0, 2.0, 3.0):
        assert rank.take() == "send"
        dist.send(rank.full(value), 1)


def ask_for_futures(rank):
    into = rank.full(0.0)
    work = dist.irecv(into, 0)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert not future.done()
    rank.give("send")
    assert bool((doubled.wait() == 2).all())
    assert work.is_completed()
    # With a timeout wait() blocks the host until the end, for CUDA tensors too.
    for value, timeout in ((2, None), (3, A_WHILE)):
        work = dist.irecv(into, 0)
        rank.give("send")
        assert work.wait(timeout) if timeout else work.wait()
        assert work.is_success() or not timeout
        assert bool((into == value).all())
        expect_success(work)


def test_futures_and_waits_of_the_host(tmp_path):
    run_ranks(send_for_futures, ask_for_futures, (0, 0), tmp_path)


# ---- Ends that let streams go


def stay(rank):
    dist.new_group()
    dist.new_group(timeout=timedelta(seconds=1))
    rank.sync()


def end_waits(rank):
    aborted, hasty = dist.new_group(), dist.new_group(timeout=timedelta(seconds=1))
    into = rank.full(0.0)
    work = aborted.recv([into], 0, 0)
    work.block_current_stream()
    behind = torch.cuda.Event()
    behind.record()
    assert not behind.query()
    aborted.abort()
    behind.synchronize()
    assert isinstance(work.exception(), dist.DistBackendError)

    work = dist.irecv(into, 0, group=hasty)
    work.block_current_stream()
    torch.cuda.synchronize()  # the group's thread ends it at its timeout
    assert "deadline passed" in str(work.exception())
    with pytest.raises(dist.DistBackendError):
        work.wait()
    rank.sync()


def test_abort_and_timeouts_let_streams_go(tmp_path):
    run_ranks(stay, end_waits, (0, 0), tmp_path)


def die(rank):
    rank.give(os.getpid())
    threading.Event().wait(DEADLINE)


def outlive(rank):
    victim = rank.take()
    into = rank.full(0.0)
    work = dist.irecv(into, 0)
    work.block_current_stream()
    os.kill(victim, signal.SIGKILL)
    torch.cuda.synchronize()
    assert "rank 0" in str(work.exception())
    with pytest.raises(dist.DistBackendError):
        dist.send(into, 0)


def test_a_killed_peer_lets_streams_go(tmp_path):
    run_ranks(die, outlive, (0, 0), tmp_path, killed=(0,))


def die_busy(rank):
    tensor = rank.full(0.0)
    torch.cuda.synchronize()
    rank.sync()
    torch.cuda._sleep(100 * LONG)
    dist.isend(tensor, 1).wait()
    rank.give(os.getpid())
    threading.Event().wait(DEADLINE)


def outlive_enqueued(rank):
    into = rank.full(0.0)
    torch.cuda.synchronize()
    work = dist.irecv(into, 0)
    rank.sync()
    work.wait()
    victim = rank.take()
    assert not work.is_completed()
    timer = threading.Timer(0.5, os.kill, (victim, signal.SIGKILL))
    timer.start()
    torch.erfc(into)  # for the first time: it waits for the stream, which waits for the victim
    torch.cuda.synchronize()
    timer.join()
    with pytest.raises(dist.DistBackendError):
        work.wait(A_WHILE)


@pytest.mark.parametrize("devices", PLACES)
def test_a_peer_killed_while_it_copies_lets_streams_go(devices, tmp_path):
    run_ranks(die_busy, outlive_enqueued, devices, tmp_path, killed=(0,))


# ---- Devices and collectives


def refuse_another_device(rank):
    elsewhere = torch.zeros(8, device=f"cuda:{rank.other}")
    with pytest.raises(ValueError, match=r"torch\.cuda\.set_device"):
        dist.send(elsewhere, rank.other)


@two_gpus
def test_another_device_is_refused(tmp_path):
    run_ranks(refuse_another_device, refuse_another_device, (0, 1), tmp_path)


def reduce_on_host(rank):
    total = torch.full((1000,), float(rank.number + 1))
    dist.all_reduce(total)
    assert bool((total == 3).all())
    dist.barrier()


@pytest.mark.parametrize("devices", PLACES)
def test_collectives_of_host_tensors(devices, tmp_path):
    run_ranks(reduce_on_host, reduce_on_host, devices, tmp_path)


def reduce_on_gpus(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    total = rank.full(float(rank.number + 1))
    dist.all_reduce(total)
    assert bool((total == 3).all())
    parts = rank.full(0.0, 2000)
    dist.all_gather_into_tensor(parts, rank.full(float(rank.number), 1000))
    assert parts.unique().tolist() == [0.0, 1.0]
    # A message between two collectives, all behind one another on the stream.
    work = dist.irecv(total, rank.other)
    dist.isend(rank.full(7.0), rank.other).wait()
    work.wait()
    dist.all_reduce(total)
    assert bool((total == 14).all())
    mesh = init_device_mesh("cuda", (2,))
    whole = torch.arange(12.0, device=rank.device).reshape(6, 2)
    replicated = distribute_tensor(whole, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    assert torch.equal(replicated.to_local(), whole)


@two_gpus
def test_collectives_of_cuda_tensors(tmp_path):
    run_ranks(reduce_on_gpus, reduce_on_gpus, (0, 1), tmp_path)


@two_gpus
def test_example():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "on cuda:1" in done.stdout
