# SPDX-License-Identifier: Apache-2.0
"""Batches as messages: many blocks at one side, many others at the other."""

import signal
import threading
import time

import numpy as np
import onehop
import pytest
from processes import run_pair, run_ranks

SIZE = 200_000
COUNT = 1000


def source():
    return (np.arange(SIZE) % 251).astype("u1")


def blocks(seed):
    """Offsets and lengths of blocks that do not overlap, in any order."""
    random = np.random.default_rng(seed)
    offsets = random.permutation(COUNT) * (SIZE // COUNT)
    return offsets.astype("i8"), random.integers(0, SIZE // COUNT, COUNT)


def gathered(memory, offsets, lengths):
    pieces = [memory[o : o + n] for o, n in zip(offsets, lengths, strict=True)]
    return np.concatenate([*pieces, np.zeros(0, "u1")])


def send_forms(side):
    memory = source()
    offsets, lengths = blocks(1)
    side.peer.send_batch(memory, offsets, lengths, timeout=30)
    side.peer.send_batch(memory, offsets.astype("u8"), 100, tag=1, timeout=30)
    side.peer.send_batch(memory, range(0, SIZE, 200), 50, tag=1, timeout=30)
    side.peer.send_batch(memory, [5, 0], [3, 4], timeout=30)
    side.peer.send_batch(memory, [], [], tag=2**62 - 1, timeout=30)
    region = side.endpoint.register(onehop.empty(SIZE, "u1"))
    side.peer.send_batch(region[100:200], [10], 90, timeout=30)


def receive_forms(side):
    expected = source()
    offsets, lengths = blocks(1)
    whole = gathered(expected, offsets, lengths)
    buffer = np.zeros(SIZE, "u1")
    message = side.peer.recv_batch(buffer, [0], [SIZE], timeout=30)
    assert (message.nbytes, message.tag) == (len(whole), 0)
    assert message.path in ("shm", "socket")
    assert (buffer[: len(whole)] == whole).all()

    request = side.peer.irecv_batch(buffer, range(0, SIZE, 100), 100, tag=1)
    assert request.wait(timeout=30).nbytes == 100 * COUNT
    assert (buffer[: 100 * COUNT] == gathered(expected, offsets, [100] * COUNT)).all()

    ours, _ = blocks(2)
    assert side.peer.recv_batch(buffer, ours, 50, tag=1, timeout=30).nbytes == 50 * COUNT
    strided = gathered(expected, range(0, SIZE, 200), [50] * COUNT)
    assert (gathered(buffer, ours, [50] * COUNT) == strided).all()

    assert side.peer.recv_batch(buffer, [0], [8], timeout=30).nbytes == 7
    assert bytes(buffer[:7]) == bytes([5, 6, 7, 0, 1, 2, 3])
    assert side.peer.recv_batch(buffer, [], [], tag=2**62 - 1, timeout=30).nbytes == 0
    region = side.endpoint.register(onehop.empty(SIZE, "u1"))
    assert side.peer.recv_batch(region, [7], [90], timeout=30).nbytes == 90


@pytest.mark.parametrize("segment", ["auto", "off"])
def test_offsets_and_lengths_take_many_forms(segment, monkeypatch):
    monkeypatch.setenv("ONEHOP_SEGMENT", segment)
    run_pair(send_forms, receive_forms)


def exchange(side):
    memory = np.full(SIZE, side.number, "u1")
    offsets, lengths = blocks(side.number)
    total = int(lengths.sum())
    buffer = np.zeros(SIZE, "u1")
    request = side.peer.irecv_batch(buffer, [0], [SIZE])
    side.peer.send_batch(memory, offsets, lengths, timeout=30)
    message = request.wait(timeout=30)
    assert (buffer[: message.nbytes] == 1 - side.number).all()
    return total, message.nbytes


def test_both_sides_post_then_send():
    (mine, came), (theirs, went) = run_pair(exchange, exchange)
    assert (came, went) == (theirs, mine)


def pass_around(comm):
    count = comm.size
    offsets, lengths = blocks(3)
    memory = np.full(SIZE, comm.rank, "u1")
    before, after = (comm.rank - 1) % count, (comm.rank + 1) % count
    buffer = np.zeros(SIZE, "u1")
    request = comm.irecv_batch(buffer, offsets, lengths, src=before, tag=4)
    comm.send_batch(memory, offsets, lengths, dst=after, tag=4, timeout=30)
    assert request.wait(timeout=30).source == before
    assert (gathered(buffer, offsets, lengths) == before).all()
    comm.barrier(timeout=30)
    # Barriers and batches do not see each other.
    request = comm.irecv_batch(buffer, [0], 1, src=comm.rank)
    comm.send_batch(b"!", [0], 1, dst=comm.rank, timeout=30)
    assert request.wait(timeout=30).nbytes == 1
    if comm.rank == 0:
        comm.send_batch(memory, [0], 8, dst=1, timeout=30)
    if comm.rank == 1:
        assert comm.recv_batch(buffer, [0], 8, src=0, timeout=30).nbytes == 8
    with pytest.raises(onehop.InvalidArgument):
        comm.recv_batch(buffer, [0], 8, src=onehop.ANY_SOURCE)


def test_ranks_send_batches():
    run_ranks(3, pass_around)


def refuse(side):
    buffer = bytearray(100)
    for verb in (side.peer.send_batch, side.peer.recv_batch, side.peer.irecv_batch):
        with pytest.raises(onehop.OutOfRange, match="block 1"):
            verb(buffer, [0, 99], [1, 2])
        with pytest.raises(onehop.OutOfRange, match="block 0"):
            verb(buffer, np.array([-1]), 1)
        with pytest.raises(onehop.InvalidArgument, match="2 offsets and 1 lengths"):
            verb(buffer, [0, 1], [1])
        with pytest.raises(onehop.InvalidArgument, match="whole numbers"):
            verb(buffer, [0.5], [1])
        with pytest.raises(onehop.InvalidArgument, match="tags of batches"):
            verb(buffer, [0], [1], tag=2**62)
        with pytest.raises(TypeError):
            verb(buffer, None, [1])
    for verb in (side.peer.recv_batch, side.peer.irecv_batch):
        with pytest.raises((TypeError, BufferError, onehop.InvalidArgument)):
            verb(b"read-only", [0], [1])
    with pytest.raises(onehop.TimeoutError):
        side.peer.send_batch(buffer, [0], [1], tag=7, timeout=0.25)
    with pytest.raises(onehop.TimeoutError):
        side.peer.recv_batch(buffer, [0], [1], tag=8, timeout=0.25)
    side.sync()


def test_what_cannot_be_sent_is_refused():
    run_pair(refuse, refuse)


def send_one_too_many(side):
    with pytest.raises(onehop.OperationError) as caught:
        side.peer.send_batch(bytes(11), [0], 11, timeout=30)
    assert caught.value.status is onehop.Status.TRUNCATED
    side.peer.send_batch(b"next", [0], 4, timeout=30)


def receive_one_too_few(side):
    buffer = bytearray(10)
    with pytest.raises(onehop.OperationError, match="11 bytes") as caught:
        side.peer.recv_batch(buffer, [0], 10, timeout=30)
    assert caught.value.status is onehop.Status.TRUNCATED
    assert side.peer.recv_batch(buffer, [0], 10, timeout=30).nbytes == 4
    assert buffer[:4] == b"next"


def test_longer_batches_are_errors_on_both_sides():
    run_pair(send_one_too_many, receive_one_too_few)


def interrupted(side, verb):
    buffer = bytearray(100)

    def strike():
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=strike).start()
    with pytest.raises(KeyboardInterrupt):
        getattr(side.peer, verb)(buffer, [0], 100, timeout=30)
    side.sync()
    # What was given up matches nothing.
    if side.number == 0:
        side.peer.send_batch(b"after", [0], 5, timeout=30)
    else:
        assert side.peer.recv_batch(buffer, [0], 5, timeout=30).nbytes == 5
        assert buffer[:5] == b"after"


def timeout_text(call, *arguments, **options):
    with pytest.raises(onehop.TimeoutError) as caught:
        call(*arguments, timeout=0.2, **options)
    return str(caught.value)


def test_a_message_and_a_batch_of_one_tag_never_meet(pair):
    """The timeout names the mismatch, also where the other side does not wait."""
    large = bytes(1_000_000)
    batch = pair.second.irecv_batch(bytearray(100), [0], 100, tag=7)
    text = timeout_text(pair.first.send, large, tag=7)
    assert "receives a batch with this tag" in text
    assert "use send_batch here" in text
    assert "use send_batch here" not in timeout_text(pair.first.send, large, tag=6)
    pair.first.send_batch(bytes(100), [0], 100, tag=7, timeout=30)
    assert batch.wait(timeout=30).nbytes == 100

    message = pair.first.isend(large, tag=8)
    text = timeout_text(pair.second.recv_batch, bytearray(100), [0], 100, tag=8)
    assert "sends a message with this tag" in text
    assert "use recv here" in text
    assert pair.second.recv(bytearray(1_000_000), tag=8, timeout=30).nbytes == 1_000_000
    message.wait(timeout=30)


def named_in_time(advice, call, *arguments, **options):
    # The other side looks for signals between its slices: then it does not wait for a moment.
    texts = []
    while not texts or (advice not in texts[-1] and len(texts) < 50):
        texts.append(timeout_text(call, *arguments, **options))
    assert advice in texts[-1]


def test_a_wait_for_the_other_kind_is_named(pair):
    receive = threading.Thread(
        target=pair.second.recv, args=(bytearray(100),), kwargs={"tag": 9, "timeout": 60}
    )
    receive.start()
    named_in_time("use send here", pair.first.send_batch, bytes(100), [0], 100, tag=9)
    pair.first.send(bytes(100), tag=9, timeout=30)
    receive.join()

    send = threading.Thread(
        target=pair.first.send_batch, args=(bytes(100), [0], 100), kwargs={"tag": 10, "timeout": 60}
    )
    send.start()
    named_in_time("use recv_batch here", pair.second.recv, bytearray(100), tag=10)
    pair.second.recv_batch(bytearray(100), [0], 100, tag=10, timeout=30)
    send.join()


def interrupt_send(side):
    interrupted(side, "send_batch")


def interrupt_recv(side):
    interrupted(side, "recv_batch")


def wait_for_the_other(side):
    side.sync()
    if side.number == 0:
        side.peer.send_batch(b"after", [0], 5, timeout=30)
    else:
        buffer = bytearray(5)
        assert side.peer.recv_batch(buffer, [0], 5, timeout=30).nbytes == 5
        assert buffer == b"after"


def test_ctrl_c_ends_a_send():
    run_pair(interrupt_send, wait_for_the_other)


def test_ctrl_c_ends_a_receive():
    run_pair(wait_for_the_other, interrupt_recv)
