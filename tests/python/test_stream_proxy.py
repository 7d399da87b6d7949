# SPDX-License-Identifier: Apache-2.0
"""Operations of a stream where no kernel reaches the peer: the same programs, through the host.

On one host, where memory may not be mapped; and without shared memory, as to another one.
"""

import pytest
import test_stream as streams
from processes import run_pair

pytestmark = pytest.mark.usefixtures("fake_gpus")


@pytest.fixture(autouse=True, params=["ONEHOP_CUDA_IPC", "ONEHOP_SEGMENT"])
def forbidden(fake_gpus, monkeypatch, request):
    monkeypatch.setenv(request.param, "off")
    monkeypatch.setenv("ONEHOP_LOG", "error")
    return request.param


def tell_way(side, forbidden):
    side.peer.warmup(timeout=30)
    info = side.peer.stream_info()
    assert (info.path, info.ready, info.small_max, info.why_not) == ("proxy", True, 0, "")
    assert forbidden in info.why_no_kernels
    (row,) = [row for row in side.peer.paths() if row.operation == "stream"]
    assert (row.path, row.source, row.target) == ("proxy", "device", "device")
    assert info.why_no_kernels in row.why
    streams.exchange(side, streams.LARGE)


def test_the_way_is_told(forbidden):
    run_pair(tell_way, tell_way, forbidden, devices=streams.GPUS)


def test_messages_of_any_size_on_lanes():
    run_pair(streams.send_sizes, streams.receive_sizes, devices=streams.GPUS)


def test_sizes_in_the_memory_of_the_gpu():
    run_pair(streams.send_sized, streams.receive_sized, devices=streams.GPUS)


def test_a_wait_ends_at_its_timeout_and_is_told():
    run_pair(streams.wait_in_vain, streams.send_after_the_reset, devices=streams.GPUS)


def test_a_longer_message_is_told():
    run_pair(streams.receive_too_little, streams.send_too_much, devices=streams.GPUS)


def test_captured_operations_are_replayed():
    run_pair(streams.capture_sends, streams.capture_receives, devices=streams.GPUS)


def test_puts_come_before_the_signals_behind_them():
    run_pair(streams.put_and_signal, streams.wait_and_look, devices=streams.GPUS)
