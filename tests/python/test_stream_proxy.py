# SPDX-License-Identifier: Apache-2.0
"""Operations of a stream where no kernel reaches the peer: Python tells that they go by proxy.

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
