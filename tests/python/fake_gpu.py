# SPDX-License-Identifier: Apache-2.0
"""Memory of the fake CUDA driver, and the array libraries that could give it to onehop.

For processes that a test with the fixture fake_gpus has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_uint64, c_void_p

# Numbers of DLPack's kinds of devices.
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
BYTE = (1, 8, 1)  # uint8 for DLPack: code, bits, lanes


class Driver:
    """The fake driver, with a context of a device."""

    def __init__(self, device=0) -> None:
        self.library = ctypes.CDLL(os.environ["ONEHOP_CUDA_LIBRARY"])
        self.device = device
        context = c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def allocate(self, data: bytes) -> int:
        """Return the address of new device memory with these bytes."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), ctypes.c_size_t(max(len(data), 1)))
        self.write(address.value, data)
        return address.value

    def write(self, address, data) -> None:
        if data:
            self.call("fake_cuda_poke", c_uint64(address), bytes(data), ctypes.c_size_t(len(data)))

    def read(self, address, size) -> bytes:
        data = ctypes.create_string_buffer(size)
        if size:
            self.call("fake_cuda_peek", c_uint64(address), data, ctypes.c_size_t(size))
        return data.raw

    def stream(self) -> int:
        made = c_void_p()
        self.call("cuStreamCreate", byref(made), 1)
        return made.value

    def synchronize(self, stream) -> None:
        self.call("cuStreamSynchronize", c_void_p(stream))

    @contextlib.contextmanager
    def capture(self, stream):
        """Capture the stream; give a list that has the graph afterwards, ready to be launched."""
        graphs = []
        self.call("cuStreamBeginCapture_v2", c_void_p(stream), 1)  # of this thread only
        try:
            yield graphs
        finally:
            graph, ready = c_void_p(), c_void_p()
            self.call("cuStreamEndCapture", c_void_p(stream), byref(graph))
            self.call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
            self.call("cuGraphDestroy", graph)
            graphs.append(ready)

    def launch(self, graph, stream) -> None:
        self.call("cuGraphLaunch", graph, c_void_p(stream))

    def event(self) -> int:
        made = c_void_p()
        self.call("cuEventCreate", byref(made), 2)
        return made.value

    def record(self, event, stream) -> None:
        self.call("cuEventRecord", c_void_p(event), c_void_p(stream))

    def fill_later(self, stream, address, value, size) -> None:
        """Let the stream fill memory, once it is let go."""
        self.call("fake_cuda_hold", c_void_p(stream))
        arguments = (c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(size))
        self.call("cuMemsetD8Async", *arguments, c_void_p(stream))

    def let_go(self, stream) -> None:
        self.call("fake_cuda_release", c_void_p(stream))


class Array:
    """Bytes in device memory; subclasses show them in the ways of array libraries."""

    def __init__(self, driver, content, **given) -> None:
        self.driver = driver
        self.address = driver.allocate(content)
        self.size = len(content)
        self.given = given  # what differs from a plain array of bytes

    def bytes(self) -> bytes:
        return self.driver.read(self.address, self.size)


class CudaArray(Array):
    """As those of cupy and numba."""

    @property
    def __cuda_array_interface__(self):
        plain = {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False)}
        return {**plain, "version": 3, "strides": None, "stream": 1, **self.given}


class RefusingArray(CudaArray):
    """As those of cupy 14, which have the buffer protocol to refuse with it."""

    def __buffer__(self, flags):
        msg = "not on the CPU"
        raise TypeError(msg)


# ---- DLPack


class Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", c_int32 * 2),
        ("ndim", c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class Managed(Structure):
    _fields_ = (("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p))


class Versioned(Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    )


names = []  # of capsules, which only point to them
DELETER = ctypes.PYFUNCTYPE(None, c_void_p)
# What was exported and not given back: address of the struct -> what it points to.
exported = {}


@DELETER
def _delete(address):
    del exported[address]


def fill(tensor, array) -> list:
    """Describe an array; return what has to live as long as the description."""
    shape = array.given.get("shape", (array.size,))
    strides = array.given.get("strides")
    lengths = (c_int64 * len(shape))(*shape)
    steps = (c_int64 * len(shape))(*strides) if strides else None
    tensor.data = array.address - 16
    tensor.byte_offset = 16
    tensor.device[:] = (array.given.get("kind", CUDA), array.driver.device)
    tensor.ndim = len(shape)
    tensor.code, tensor.bits, tensor.lanes = array.given.get("dtype", BYTE)
    tensor.shape = lengths
    tensor.strides = steps
    return [lengths, steps, array]


def make_managed(array, struct):
    """Export an array as one of DLPack's structs."""
    made = struct()
    kept = fill(made.tensor, array)
    made.deleter = ctypes.cast(_delete, c_void_p)
    if struct is Versioned:
        made.version[:] = array.given.get("version", (1, 1))
        made.flags = array.given.get("flags", 0)
    exported[ctypes.addressof(made)] = [made, *kept]
    return made


def capsule(address, name):
    names.append(name)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]
    return new(address, name, None)


class DlpackArray(Array):
    """As a tensor of today."""

    streams: list  # asked for, of all arrays

    def __dlpack_device__(self):
        return (self.given.get("kind", CUDA), self.driver.device)

    def __dlpack__(self, *, stream=None, max_version=None):
        assert max_version >= (1, 0)
        self.streams.append(stream)
        return capsule(ctypes.addressof(make_managed(self, Versioned)), b"dltensor_versioned")


DlpackArray.streams = []


class OldDlpackArray(DlpackArray):
    """As a tensor of some years ago."""

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return capsule(ctypes.addressof(make_managed(self, Managed)), b"dltensor")


class JaxArray(DlpackArray):
    """As those of jax: an interface of version 2, without a stream, that alone says read-only."""

    @property
    def __cuda_array_interface__(self):
        plain = {"shape": (self.size,), "typestr": "|u1", "data": (self.address, True)}
        return {**plain, "version": 2}


# ---- The C exchange API of DLPack

TENSOR_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, POINTER(Tensor))
MANAGED_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, POINTER(c_void_p))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, c_int32, c_int32, POINTER(c_void_p))


class Exchange(Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("previous", c_void_p),
        ("allocate", c_void_p),
        ("managed_from", MANAGED_FROM),
        ("managed_to", c_void_p),
        ("tensor_from", TENSOR_FROM),
        ("current_stream", STREAM),
    )


class Library:
    """The state of a library with an exchange API: its current stream, and how it was asked."""

    stream = None
    calls: list
    fails = False


Library.calls = []


@TENSOR_FROM
def _tensor_from(array, out):
    Library.calls.append("tensor")
    if Library.fails:
        return -1
    # Python's memory for the shape lives with the array, as a library's own would.
    array.kept = fill(out[0], array)[:2]
    return 0


@MANAGED_FROM
def _managed_from(array, out):
    Library.calls.append("managed")
    if Library.fails:
        return -1
    out[0] = ctypes.addressof(make_managed(array, Versioned))
    return 0


@STREAM
def _current_stream(kind, device, out):
    assert kind == CUDA
    Library.calls.append("stream")
    out[0] = Library.stream
    return 0


def exchange(version=(1, 3), previous=None, **functions):
    """Return a table of functions, kept for good."""
    table = Exchange()
    table.version[:] = version
    table.previous = previous
    table.managed_from = functions.get("managed_from", _managed_from)
    table.tensor_from = functions.get("tensor_from", _tensor_from)
    table.current_stream = functions.get("current_stream", _current_stream)
    exchange.tables.append(table)
    return ctypes.addressof(table)


exchange.tables = []


def exchanged_type(api):
    """Return a type whose objects are exchanged by this API, a capsule or a number."""
    return type("ExchangedArray", (DlpackArray,), {"__dlpack_c_exchange_api__": api})


ExchangedArray = exchanged_type(capsule(exchange(), b"dlpack_exchange_api"))

KINDS = [CudaArray, RefusingArray, DlpackArray, OldDlpackArray, ExchangedArray]


# ---- Streams and events of array libraries


class TorchStream:
    def __init__(self, stream):
        self.cuda_stream = stream


class ProtocolStream:
    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return (0, self.stream)


class CupyStream:
    def __init__(self, stream):
        self.ptr = stream


class NumbaStream:
    def __init__(self, stream):
        self.handle = c_void_p(stream)


class TorchEvent:
    def __init__(self, event):
        self.cuda_event = event


class Event:
    """As cupy's, whose streams have the same attribute."""

    def __init__(self, event):
        self.ptr = event


class DerivedEvent(Event):
    pass


STREAMS = [TorchStream, ProtocolStream, CupyStream, NumbaStream, int]
EVENTS = [TorchEvent, Event, DerivedEvent]
