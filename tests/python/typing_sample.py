# SPDX-License-Identifier: Apache-2.0
"""The public API as typed programs use it: for mypy --strict and pyright, on Python 3.10 to 3.13.

Nothing runs it: tools/test.sh checks its types.
"""

from __future__ import annotations

import array
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import onehop
from onehop import patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class Tensor:
    """As those of torch and jax."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class GpuArray:
    """As those of cupy and numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


class Stream:
    """As torch.cuda.Stream."""

    @property
    def cuda_stream(self) -> int:
        return 0


def buffers() -> Sequence[onehop.Buffer]:
    floats: npt.NDArray[np.float32] = np.zeros(4, np.float32)
    made: list[onehop.Buffer] = [b"", bytearray(), memoryview(b""), array.array("B"), floats]
    made += [Tensor(), GpuArray(), onehop.empty(8), onehop.empty((2, 4), np.float64)]
    return made


def messages(peer: onehop.Peer, endpoint: onehop.Endpoint) -> int:
    for buffer in buffers():
        peer.send(buffer)
    rank, tag = np.arange(2)
    peer.send(b"", tag, timeout=1.5, after=None)
    peer.send(np.zeros(3), tag=np.int64(3), timeout=None, after=onehop.CURRENT_STREAM)
    message: onehop.Message = peer.recv(np.zeros(3), onehop.ANY_TAG, after=Stream())
    requests: list[onehop.Request] = [peer.isend(b"", 1), peer.irecv(bytearray(3), np.uint8(1))]
    requests += [endpoint.irecv(bytearray(3))]
    ended: list[bool] = [request.test() or request.done or request.cancel() for request in requests]
    status: onehop.Status = requests[0].status
    total: int = endpoint.recv(bytearray(3)).nbytes + message.tag + message.source + len(ended)
    return total + int(status) + int(rank)


def waits(peer: onehop.Peer, endpoint: onehop.Endpoint, group: onehop.Communicator) -> bytes:
    requests = [peer.isend(b"", 1), peer.irecv(bytearray(3), np.uint8(1))]
    first: int = onehop.wait_any(requests, timeout=1)
    messages: list[onehop.Message] = onehop.wait_all(requests, timeout=None)
    sizes = [peer.probe(np.int64(1)).nbytes, endpoint.probe(timeout=1).nbytes]
    sizes += [group.probe(np.int64(0), tag=1).nbytes, messages[first].nbytes, len(requests)]
    source, note = endpoint.wait_notification(timeout=1)
    return note + bytes(source) + bytes(sizes)


async def awaited(peer: onehop.Peer, endpoint: onehop.Endpoint, address: bytes) -> str:
    message: onehop.Message = await peer.irecv(bytearray(8))
    message = await peer.probe_async(np.int64(1), timeout=1)
    await peer.wait_signal_async(1, n=np.int64(2))
    peers = [await endpoint.connect_async(address), await endpoint.accept_async(timeout=1)]
    source, note = await endpoint.wait_notification_async()
    return f"{message.path} {peers} {source} {note!r}"


def batches(peer: onehop.Peer, remote: onehop.RemoteRegion) -> None:
    memory = np.zeros(4096, np.uint8)
    starts: npt.NDArray[np.int64] = np.arange(0, 4096, 64)
    lengths: npt.NDArray[np.uint64] = np.full(64, 32, np.uint64)
    places: list[onehop.Offsets] = [starts, lengths, range(8), [0, 64], (0, np.int64(64))]
    places += [array.array("q", [0]), np.arange(4, dtype=np.int32)]
    for place in places:
        peer.send_batch(memory, place, 32, tag=1, timeout=3)
        peer.recv_batch(memory, place, np.int64(32)).nbytes.bit_length()
        peer.irecv_batch(memory, place, lengths).wait(timeout=1)
        peer.put_batch(memory, remote, place, starts, lengths, notify=b"done", after=None).wait()
        peer.get_batch(memory, remote, starts, place, 32).wait()
        peer.scatter(memory, remote, place, 32).wait()
        peer.gather(memory, remote, place, lengths).wait()
    with peer.prepare_put(memory, remote, starts, starts, 32) as prepared:
        prepared.post(notify=np.zeros(2)).wait()
    peer.prepare_get(memory, remote, starts, range(64), lengths).close()


def regions(endpoint: onehop.Endpoint, peer: onehop.Peer) -> tuple[int, int]:
    region: onehop.Region = endpoint.register(np.zeros(64))
    remote: onehop.RemoteRegion = peer.attach(region.descriptor, timeout=5)
    peer.put(region[8:16], remote[np.int64(8) : 16], notify=b"x").wait()
    peer.get(bytearray(len(remote)), remote).wait()
    peer.notify(region[:8])
    peer.signal(np.int32(1), n=2)
    peer.wait_signal(1, timeout=None)
    notes: list[tuple[int, bytes]] = endpoint.notifications()
    region.deregister(timeout=1)
    remote.detach()
    return len(notes), remote.device_memory()[0]


def streams(
    peer: onehop.Peer, communicator: onehop.Communicator, remote: onehop.RemoteRegion
) -> str:
    peer.warmup(timeout=1)
    ordered: onehop.OnStream = peer.on(Stream())
    with onehop.group():
        ordered.send(Tensor(), np.int64(2), size_from=Tensor())
        ordered.recv(GpuArray(), lane=2, timeout=None, size_to=Tensor())
    ordered.put(Tensor(), remote)
    ordered.fetch_add(remote[:8], np.uint64(1), before=Tensor())
    ordered.compare_swap(remote[:8], 0, np.int64(1))
    ordered.signal(3)
    ordered.wait_signal(3, n=np.int64(1), timeout=1)
    communicator.warmup(range(communicator.size))
    everybody: onehop.CommunicatorOnStream = communicator.on(0)
    everybody.send(Tensor(), 1)
    everybody.recv(Tensor(), np.int64(1), lane=3)
    patterns.sendrecv(communicator, 0, Tensor(), Tensor(), 1, source=0, lane=1, timeout=None)
    patterns.send_many(communicator, 0, {1: Tensor()})
    handle: onehop.LaneHandle = peer.device_handle(0)
    peer.reset_lane(0)
    info: onehop.StreamInfo = peer.stream_info()
    return f"{bytes(handle)!r} {info.path}"


def communicators(unique_id: bytes) -> onehop.PeerInfo:
    rank, size = np.int64(0), np.int64(1)
    with onehop.Communicator(rank, size, device="cpu", max_inline=np.int64(64)) as communicator:
        communicator.send(b"", np.int64(0), tag=np.int64(1), timeout=1)
        communicator.recv(bytearray(1), onehop.ANY_SOURCE).source.bit_length()
        communicator.isend(b"", 0).wait()
        communicator.irecv(bytearray(1), 0).wait()
        communicator.send_batch(b"", [0], [0], dst=0)
        communicator.recv_batch(bytearray(1), np.arange(1), 1, src=0)
        communicator.irecv_batch(bytearray(1), [0], [1], src=0).wait()
        communicator.barrier(timeout=1)
        endpoint: onehop.Endpoint = communicator.endpoint
        endpoint.progress()
    onehop.Communicator(0, 2, "tcp://127.0.0.1:29400").close()
    onehop.Communicator(0, 2, unique_id=unique_id, progress_thread=True, timeout=None).close()
    return communicator.peer(np.int64(0)).info()


def endpoints(address: bytes) -> dict[str, onehop.PoolStats]:
    names: weakref.WeakKeyDictionary[onehop.Peer, str] = weakref.WeakKeyDictionary()
    with onehop.Endpoint(device=None) as endpoint, endpoint.connect(address, timeout=1) as peer:
        names[peer] = "first"
        names[endpoint.accept(timeout=1)] = "second"
        endpoint.trim()
        address = endpoint.address
        stats: onehop.PeerStats = peer.stats()
        paths: onehop.Paths = onehop.paths(peer)
        metrics: dict[str, Any] = onehop.metrics()
        text: str = onehop.prometheus()
        print(metrics["onehop_peers"], text)
        print(stats, paths, peer.flight_record(), peer.id, peer.rank, endpoint.event_fd)
        if (error := peer.async_error()) is not None:
            print(error.status.name, error.scope, error.text)
        return endpoint.pools()


def facts() -> tuple[onehop.Info, onehop.Topology, list[onehop.Variable], str]:
    try:
        return onehop.info(), onehop.topology(), onehop.config(), onehop.get_include()
    except onehop.PeerLost as lost:
        raise onehop.LinkError(lost.status, lost.text) from lost
    except (onehop.OutOfRange, onehop.InvalidType, onehop.TimeoutError, onehop.EndpointError):
        return onehop.info(), onehop.topology(), [], onehop.get_library_dir() + onehop.__version__
