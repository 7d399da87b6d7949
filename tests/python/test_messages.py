# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes."""

import re
import threading

import numpy as np
import onehop
import pytest
from processes import LocalPair, run_alone, run_pair

SIZES = [0, 1, 7, 64, 400, 401, 1024, 16384, 16385, 65536, 300_001, 1 << 20, 5_000_011]


def content(size, seed):
    return np.random.default_rng([size, seed]).integers(0, 256, size, dtype="u1")


def send_every_size(side):
    for seed, size in enumerate(SIZES):
        side.peer.send(content(size, seed), tag=seed, timeout=30)
    side.sync()
    requests = [side.peer.isend(content(size, seed)) for seed, size in enumerate(SIZES)]
    for request in requests:
        request.wait(timeout=30)
        assert request.buffer_released
    return side.peer.stats()


def receive_every_size(side):
    paths = set()
    for seed, size in enumerate(SIZES):
        buffer = np.full(size + 16, 0xEE, "u1")
        message = side.peer.recv(buffer, tag=seed, timeout=30)
        assert (message.nbytes, message.tag) == (size, seed)
        assert message.source == message.peer_id == side.peer.id
        assert (buffer[:size] == content(size, seed)).all()
        assert (buffer[size:] == 0xEE).all()
        paths.add(message.path)
    buffers = [np.zeros(size, "u1") for size in SIZES]
    requests = [side.peer.irecv(buffer) for buffer in buffers]
    side.sync()
    for seed, (size, buffer, request) in enumerate(zip(SIZES, buffers, requests, strict=True)):
        assert request.wait(timeout=30).nbytes == size
        assert (buffer == content(size, seed)).all()
    return paths


def test_every_size_arrives_whole():
    stats, paths = run_pair(send_every_size, receive_every_size)
    assert paths == {"inline", "shm"}
    assert sum(counter.operations for counter in stats.sent.values()) == 2 * len(SIZES)
    assert sum(counter.bytes for counter in stats.sent.values()) == 2 * sum(SIZES)


def send_with_tags(side):
    large = side.peer.isend(np.full(100_000, 9, "u1"), tag=9)
    side.peer.send(b"three", tag=3, timeout=30)
    side.peer.send(b"any source", tag=4, timeout=30)
    side.sync()
    large.wait(timeout=30)


def receive_with_wildcards(side):
    side.sync()
    buffer = np.zeros(100_000, "u1")
    assert side.peer.recv(buffer, tag=onehop.ANY_TAG, timeout=30).tag == 9
    assert (buffer == 9).all()
    assert side.peer.recv(buffer, tag=onehop.ANY_TAG, timeout=30).tag == 3
    message = side.endpoint.recv(buffer, tag=4, timeout=30)
    assert message.source == side.peer.id
    assert bytes(buffer[: message.nbytes]) == b"any source"


def test_wildcards():
    run_pair(send_with_tags, receive_with_wildcards)


def send_too_much(side):
    told = 0
    for size in (64, 3000, 100_000, 3_000_000):
        try:
            side.peer.send(bytes(size), tag=1, timeout=30)
        except onehop.OperationError as failure:
            told += failure.status is onehop.Status.TRUNCATED
        side.peer.send(b"next", tag=1, timeout=30)
        side.sync()
        error = side.peer.async_error()
        if error is not None:
            assert error.status is onehop.Status.TRUNCATED
            told += 1
        assert side.peer.async_error() is None
    return told


def receive_too_little(side):
    for size in (64, 3000, 100_000, 3_000_000):
        buffer = bytearray(size - 1)
        with pytest.raises(onehop.OperationError, match=str(size)) as caught:
            side.peer.recv(buffer, tag=1, timeout=30)
        assert caught.value.status is onehop.Status.TRUNCATED
        # The link stays in step.
        assert side.peer.recv(buffer, tag=1, timeout=30).nbytes == 4
        assert buffer[:4] == b"next"
        side.sync()


def test_longer_messages_are_errors_on_both_sides():
    told, _ = run_pair(send_too_much, receive_too_little)
    assert told == 4


def wait_in_vain(side):
    side.take()
    texts = []
    # The other side looks for signals between its slices: then it does not wait for a moment.
    while not texts or ("there: waits in a receive (tag 8)" not in texts[-1] and len(texts) < 50):
        with pytest.raises(TimeoutError) as caught:
            side.peer.recv(bytearray(10), tag=5, timeout=0.2)
        assert caught.value.status is onehop.Status.TIMEOUT
        texts.append(str(caught.value))
    # Seconds of the whole wait, which was made in slices, and what to do.
    waited = r"the deadline passed after 0\.(1[89]|[2-9]\d)\d s: receive of 10 bytes"
    assert re.match(waited, texts[-1])
    assert "receive of 10 bytes with tag 5" in texts[-1]
    assert "ONEHOP_TIMEOUT" in texts[-1]
    assert "here: posted" in texts[-1]
    assert "there: waits in a receive (tag 8)" in texts[-1]
    with pytest.raises(onehop.TimeoutError):
        side.peer.recv(bytearray(10), timeout=0)
    with pytest.raises(onehop.TimeoutError, match="send of 1000000 bytes"):
        side.peer.send(bytes(1_000_000), timeout=0.1)
    with pytest.raises(onehop.TimeoutError, match=r"after 0.250 s: 1 signals on slot 3"):
        side.peer.wait_signal(3, timeout=0.25)
    with pytest.raises(onehop.TimeoutError, match=r"after 0\.\d{3} s: .* any source") as caught:
        side.endpoint.recv(bytearray(1), tag=77, timeout=0.1)
    assert "ONEHOP_TIMEOUT" in str(caught.value)
    with pytest.raises(onehop.TimeoutError, match=r"after 0.150 s: no peer connected"):
        side.endpoint.accept(timeout=0.15)
    request = side.peer.irecv(bytearray(10), tag=6)
    with pytest.raises(onehop.TimeoutError):
        request.wait(timeout=0.1)
    assert request.buffer_released
    side.peer.send(b"done", tag=8, timeout=30)


def wait_elsewhere(side):
    side.give("ready")
    buffer = bytearray(10)
    assert side.peer.recv(buffer, tag=8, timeout=None).nbytes == 4


def test_timeouts_say_what_both_sides_do():
    run_pair(wait_in_vain, wait_elsewhere)


def default_timeout(side):
    if side.number == 0:
        with pytest.raises(onehop.TimeoutError):
            side.peer.recv(bytearray(1))


def test_the_default_timeout_is_the_variable(monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "0.2")
    run_pair(default_timeout, default_timeout)


THREADS = 4
ROUNDS = 50


def exchange_in_threads(side):
    failures = []

    def exchange(thread):
        size = [8, 5000, 50_000, 300_000][thread]
        received = np.zeros(size, "u1")
        for step in range(ROUNDS):
            request = side.peer.irecv(received, tag=thread)
            side.peer.send(content(size, 2 * step + side.number), tag=thread, timeout=30)
            request.wait(timeout=30)
            if not (received == content(size, 2 * step + 1 - side.number)).all():
                failures.append((thread, step))

    threads = [threading.Thread(target=exchange, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_threads_share_a_peer():
    run_pair(exchange_in_threads, exchange_in_threads)


def test_a_blocked_thread_leaves_the_interpreter_to_others(pair):
    received = bytearray(3)
    thread = threading.Thread(target=pair.second.recv, args=(received,), kwargs={"timeout": 30})
    thread.start()
    pair.first.send(b"abc", timeout=30)
    thread.join(30)
    assert received == b"abc"


def test_facts_of_a_link(pair):
    info = pair.first.info()
    assert info.max_inline == 400
    assert info.path == "local"
    assert info.rank is None
    table = str(onehop.paths(pair.first))
    assert table.splitlines()[0].split() == [
        "operation",
        "memory",
        "sizes",
        "path",
        "method",
        "why",
    ]
    assert "inside the control message" in table
    assert str(info.id) in repr(pair.first)
    pair.first.send(b"one operation")
    assert "send" in pair.first.flight_record()


def test_max_inline_is_asked_for():
    with onehop.Endpoint(max_inline=100) as first, onehop.Endpoint(max_inline=100) as second:
        peer = first.connect(second.address)
        assert peer.info().max_inline == 100
    with pytest.raises(ValueError, match="max_inline"):
        onehop.Endpoint(max_inline=-1)
    with pytest.raises(ValueError, match="max_inline"):
        onehop.Endpoint(max_inline=65537)


def test_wrong_addresses(pair):
    with pytest.raises(onehop.InvalidArgument):
        pair.endpoints[0].connect(b"no address", timeout=5)
    altered = bytearray(pair.endpoints[1].address)
    altered[len(altered) // 2] ^= 1
    with pytest.raises(onehop.InvalidArgument):
        pair.endpoints[0].connect(altered, timeout=5)


def test_what_a_tag_may_be(pair):
    with pytest.raises(ValueError, match="ANY_TAG is for receives"):
        pair.first.send(b"x", tag=-1)
    with pytest.raises(ValueError, match=r"or onehop\.ANY_TAG"):
        pair.second.irecv(bytearray(1), tag=-1)


def test_a_raw_stream_is_a_pointer(pair):
    for wrong in (-1, 2**70):
        with pytest.raises(onehop.InvalidArgument, match=r"stream is .*a raw CUDA stream"):
            pair.first.on(wrong)
        with pytest.raises(onehop.InvalidArgument, match=r"after is .*a raw CUDA stream"):
            pair.first.send(b"x", after=wrong)


def default_of_an_empty_variable():
    pair = LocalPair()
    request = pair.second.irecv(bytearray(1))
    threading.Timer(0.05, lambda: pair.first.send(b"x")).start()
    assert request.wait().nbytes == 1


def test_an_empty_variable_is_not_set(monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "")
    run_alone(default_of_an_empty_variable)
