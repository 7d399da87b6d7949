# SPDX-License-Identifier: Apache-2.0
"""What can be sent and received, and what is refused, with what advice."""

import array
import contextlib
import os

import numpy as np
import onehop
import pytest
from processes import LocalPair, run_alone


class Tensor:
    """A tensor library's array: it has __dlpack__ and no buffer protocol."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class GpuTensor:
    def __dlpack__(self, **options):
        msg = "must not be asked for"
        raise AssertionError(msg)

    def __dlpack_device__(self):
        return (2, 0)


class CudaArray:
    @property
    def __cuda_array_interface__(self):
        return {"shape": (1,), "typestr": "|u1", "data": (1, False), "version": 3}


DTYPES = ["?", "i1", "u2", "f2", "i4", "f4", "i8", "f8", "c16", "S5", "U3", "M8[s]", "V7", ">i4"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 1000, 100_003])
def test_arrays_of_every_dtype(pair, dtype, length):
    bits = np.random.default_rng(length).integers(0, 256, length * np.dtype(dtype).itemsize)
    sent = np.frombuffer(bits.astype("u1").tobytes(), dtype) if length else np.empty(0, dtype)
    received = np.zeros(length, dtype)
    request = pair.second.irecv(received)
    pair.first.send(sent, timeout=30)
    assert request.wait(timeout=30).nbytes == sent.nbytes
    assert received.tobytes() == sent.tobytes()


def test_records_with_fields_named_like_formats(pair):
    sent = np.array([(1, 2.5)], dtype=[("O", "i4"), ("second", "f8")])
    received = np.zeros_like(sent)
    pair.first.send(sent)
    pair.second.recv(received)
    assert received == sent


@pytest.mark.parametrize(
    "make",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: array.array("B", data),
        lambda data: Tensor(np.frombuffer(bytearray(data), "u1")),
    ],
)
def test_kinds_of_buffers(pair, make):
    pair.first.send(make(b"twelve bytes"))
    received = bytearray(20)
    assert pair.second.recv(received).nbytes == 12
    assert received[:12] == b"twelve bytes"


def test_shapes_do_not_matter(pair):
    sent = np.arange(24.0).reshape(2, 3, 4)
    received = np.zeros((4, 6))
    pair.first.send(sent)
    pair.second.recv(received)
    assert (received.ravel() == sent.ravel()).all()


def test_receiving_into_a_tensor(pair):
    values = np.zeros(5, "f4")
    pair.first.send(Tensor(np.arange(5, dtype="f4")))
    pair.second.recv(Tensor(values))
    assert (values == np.arange(5)).all()


def test_a_part_of_a_bytearray(pair):
    received = bytearray(10)
    pair.first.send(b"abc")
    pair.second.recv(memoryview(received)[4:7])
    assert received == b"\0\0\0\0abc\0\0\0"


@pytest.mark.parametrize(
    "strided",
    [
        np.zeros((4, 4))[:, 1],
        np.zeros((4, 4)).T,
        memoryview(bytes(8))[::2],
        Tensor(np.zeros((4, 4)).T),
    ],
)
def test_strides_are_refused_with_advice(pair, strided):
    with pytest.raises(ValueError, match=r"not C-contiguous.*contiguous copy") as caught:
        pair.first.send(strided)
    assert caught.value.status is onehop.Status.INVALID


@pytest.mark.parametrize("frozen", [b"bytes", memoryview(b"bytes"), np.frombuffer(b"bytes", "u1")])
def test_read_only_memory_cannot_be_received_into(pair, frozen):
    with pytest.raises(onehop.InvalidArgument, match="read-only"):
        pair.second.recv(frozen)
    with pytest.raises(onehop.InvalidArgument, match="read-only"):
        pair.second.irecv(frozen)
    with pytest.raises(onehop.InvalidArgument, match="read-only"):
        pair.endpoints[0].register(frozen)


@pytest.mark.parametrize("wrong", [3, None, "text", [1, 2], object()])
def test_no_buffer_at_all(pair, wrong):
    with pytest.raises(TypeError, match="is no buffer") as caught:
        pair.first.send(wrong)
    assert isinstance(caught.value, onehop.InvalidType)


@pytest.mark.parametrize("gpu", [GpuTensor(), CudaArray()])
def test_gpu_memory_is_not_in_this_build(pair, gpu):
    with pytest.raises(onehop.OperationError, match="GPU memory") as caught:
        pair.first.send(gpu)
    assert caught.value.status is onehop.Status.NOT_VIABLE


def test_python_objects_mean_nothing_elsewhere(pair):
    objects = np.array([1, "two", None], dtype=object)
    with pytest.raises(onehop.InvalidArgument, match="Python objects"):
        pair.first.send(objects)
    with pytest.raises(onehop.InvalidArgument, match="Python objects"):
        pair.second.recv(np.zeros(2, [("a", "i4"), ("b", "O")]))
    with pytest.raises(TypeError, match="Python objects"):
        onehop.empty(3, object)


class CopyingTensor(Tensor):
    """Its __dlpack__ gives a copy, as for memory that must be moved first, and says so."""

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**{**options, "copy": True})


def test_a_copy_can_be_sent_but_not_received_into(pair):
    values = np.arange(5, dtype="f4")
    received = np.zeros(5, "f4")
    pair.first.send(CopyingTensor(values))
    pair.second.recv(received)
    assert (received == values).all()
    with pytest.raises(onehop.InvalidArgument, match="shows a copy"):
        pair.second.recv(CopyingTensor(received))
    with pytest.raises(onehop.InvalidArgument, match="shows a copy"):
        pair.endpoints[0].register(CopyingTensor(received))
    # Peers would read for ever what it was then.
    with pytest.raises(onehop.InvalidArgument, match="shows a copy"):
        pair.endpoints[0].register(CopyingTensor(received), access="r")


@pytest.mark.parametrize("mask", [np.ma.nomask, [False, True, False]])
def test_masks_are_not_lost_silently(pair, mask):
    array = np.ma.array([1, 2, 3], mask=mask)
    with pytest.raises(onehop.InvalidArgument, match=r"has a mask.*array\.data"):
        pair.first.send(array)
    with pytest.raises(onehop.InvalidArgument, match="has a mask"):
        pair.second.recv(np.ma.array(["2026", "2027"], "M8[s]"))
    pair.first.send(array.data)
    pair.second.recv(received := np.zeros_like(array.data))
    assert (received == array.data).all()


def test_strings_of_variable_length_are_refused(pair):
    strings = np.array(["one", "a string that is stored elsewhere"], np.dtypes.StringDType())
    with pytest.raises(onehop.InvalidArgument, match="mean nothing elsewhere"):
        pair.first.send(strings)


def test_files_in_memory(pair, tmp_path):
    path = tmp_path / "values"
    path.write_bytes(bytes(range(40)))
    pair.first.send(np.memmap(path, "u1", "r", shape=40))
    pair.second.recv(received := np.memmap(path, "u1", "c", shape=40))
    assert received.tobytes() == bytes(range(40))
    with pytest.raises(onehop.InvalidArgument, match="read-only"):
        pair.second.recv(np.memmap(path, "u1", "r", shape=40))


def test_subclasses_of_arrays(pair):
    for sent in (np.rec.array([(1, 2.5)]), np.asmatrix(np.eye(2))):
        received = np.zeros_like(sent)
        pair.first.send(sent)
        pair.second.recv(received)
        assert received.tobytes() == sent.tobytes()


@pytest.mark.parametrize("tag", [-1, 2**64, 2**63])
def test_wrong_tags(pair, tag):
    with pytest.raises(ValueError, match="tag"):
        pair.first.send(b"", tag=tag)


def test_wrong_kinds_of_arguments(pair):
    with pytest.raises(TypeError, match="tag is of type str"):
        pair.first.send(b"", tag="1")
    with pytest.raises(TypeError, match="timeout is of type str"):
        pair.first.send(b"", timeout="1")
    with pytest.raises(ValueError, match="timeout is -1"):
        pair.first.send(b"", timeout=-1)
    with pytest.raises(ValueError, match="timeout is nan"):
        pair.first.send(b"", timeout=float("nan"))


# ---- onehop.empty


def shared_blocks():
    """Count the shared blocks that are open; a process opens other files in the background."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum("memfd:onehop-block" in target for target in targets)


def test_empty_is_zeroed_and_has_its_shape():
    made = onehop.empty((3, 5), "f4")
    assert made.shape == (3, 5)
    assert made.dtype == np.float32
    assert not made.any()
    assert onehop.empty(0, "i8").size == 0
    plain = onehop.empty(100)
    assert isinstance(plain, memoryview)
    assert plain.nbytes == 100
    with pytest.raises(onehop.InvalidArgument):
        onehop.empty(-1)


def keep_views():
    before = shared_blocks()
    views = [onehop.empty(4096, "u1")[i::7].reshape(1, -1) for i in range(10)]
    assert shared_blocks() == before + 10
    for i, view in enumerate(views):
        view[:] = i
        assert (view == i).all()
    del views, view
    assert shared_blocks() == before


def test_empty_lives_as_long_as_a_view():
    run_alone(keep_views)


def keep_requests():
    pair = LocalPair()
    before = shared_blocks()
    region = pair.endpoints[1].register(onehop.empty(1000, "u1"))
    request = pair.second.irecv(onehop.empty(2000, "u1"))
    remote = pair.first.attach(region.descriptor)
    assert shared_blocks() == before + 2
    pair.first.put(bytes(1000), remote).wait(timeout=30)
    pair.first.send(bytes(2000))
    request.wait(timeout=30)
    # The request has let go of its buffer, the region has not.
    assert shared_blocks() == before + 1
    del region, remote
    assert shared_blocks() == before


def test_empty_outlives_its_name_in_a_region_and_a_request():
    run_alone(keep_requests)


def test_shared_memory_counts_as_such(pair):
    kinds = {(row.source, row.target) for row in onehop.paths(pair.first)}
    assert ("host", "shared") in kinds
    sent = onehop.empty(1 << 20, "u1")
    sent[:] = 7
    received = onehop.empty(1 << 20, "u1")
    request = pair.second.irecv(received)
    pair.first.send(sent, timeout=30)
    request.wait(timeout=30)
    assert (received == 7).all()
