# SPDX-License-Identifier: Apache-2.0
"""Operations of a stream where no kernel reaches the peer: Python tells that they go by proxy.

On one host, where memory may not be mapped; and without shared memory, as to another one.
"""

import onehop
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


def give_host_memory(side):
    gpu = streams.Gpu(side)
    remote = side.peer.attach(side.take(), timeout=30)
    for call in (gpu.on.put, gpu.on.get):
        with pytest.raises(onehop.InvalidArgument, match="the proxy moves memory of"):
            call(onehop.empty(10), remote[:10])
    for call in (gpu.on.put_batch, gpu.on.get_batch):
        with pytest.raises(onehop.InvalidArgument, match="the proxy moves memory of"):
            call(bytearray(20), remote, [0, 10], [0, 10], 10)
    gpu.on.put(gpu.array(bytes(range(10))), remote[:10])
    gpu.on.signal(1)
    gpu.synchronize()
    assert side.peer.async_error() is None


def take_from_gpu_only(side):
    gpu = streams.Gpu(side)
    memory = gpu.array(bytes(20))
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    gpu.on.wait_signal(1, timeout=30)
    gpu.synchronize()
    assert memory.bytes() == bytes(range(10)) + bytes(10)
    region.deregister(timeout=30)


def test_the_proxy_takes_no_host_memory():
    run_pair(give_host_memory, take_from_gpu_only, devices=streams.GPUS)
