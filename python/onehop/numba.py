# SPDX-License-Identifier: Apache-2.0
"""onehop/device.cuh inside kernels of numba-cuda: messages, puts, gets and signals by a block.

    import onehop.numba as oh
    from numba import cuda

    @cuda.jit
    def exchange(lane, out, into, fault):
        found = oh.send(lane, out)
        if found == 0:
            found, size = oh.recv(lane, into)
        fault[0] = found

    lane = oh.to_device(peer.device_handle(0))
    exchange[1, 256](lane, out, into, fault)

All threads of a block make each call alike, with the same arguments. Data is a contiguous array of
any type, sent or received as a whole; a part of it is a slice. A region of the peer's is what
`remote.device_memory()` returns, passed to the kernel as it is.

Functions return an `oh_lane_fault` as an int32, the same for all threads of the block: 0, or what
has failed.

- 1: the message is longer than its receive
- 2: there is no such slot (they are 0 to 63), or the range is not within the region
- 3: the timeout in the handle has passed
- 4: the host has ended all waits, for the peer is lost, the link closed or the lane being reset
- 5, 6, 7: two operations at once on a half of the lane, it had failed before, another version

The peer may use any other interface: device.cuh, onehop.triton for signals, its streams for
messages. Threading: of each lane one block at a time may send, and one receive; any number of
blocks signal, wait, put and get at once. Needs numba-cuda 0.30 or newer, and sm_70. NVRTC compiles
the headers with the first launch of each kernel.
"""

from __future__ import annotations

import inspect
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import onehop

try:
    _found = version("numba-cuda")
except PackageNotFoundError:
    _found = "missing"
if _found == "missing" or tuple(int(part) for part in _found.split(".")[:2]) < (0, 30):
    msg = f"onehop.numba needs numba-cuda 0.30 or newer, it is {_found}: pip install numba-cuda"
    raise ImportError(msg)

import numpy as np
from llvmlite import ir
from numba import cuda
from numba.core import errors
from numba.cuda import cgutils, types
from numba.cuda.cudadrv.linkable_code import CUSource
from numba.cuda.extending import lower_builtin, type_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numba.cuda.cudadrv.devicearray import DeviceNDArray

_F = TypeVar("_F", bound="Callable[..., Any]")

__all__ = [
    "get",
    "put",
    "read_signal",
    "recv",
    "send",
    "set_signal",
    "signal",
    "to_device",
    "wait",
    "wait_until",
]


def to_device(handle: onehop.LaneHandle) -> DeviceNDArray:
    """Return the array by which kernels use a lane, on Numba's current device.

    That is the GPU that the handle was made for. The array is constant and good as long as the
    handle; graphs that have it captured replay.
    """
    return cuda.to_device(np.frombuffer(bytes(handle), np.uint64))


# ---- Device functions, each in its own source: a kernel is linked only with those that it calls


def _flat(header: str, seen: set[str]) -> str:
    """Return a header with onehop's headers inlined, so that NVRTC needs no search path."""
    if header in seen:
        return ""
    seen.add(header)
    text = (Path(onehop.get_include()) / header).read_text(encoding="utf-8")
    text = text.replace("#pragma once\n", "")
    return re.sub(
        r'^#include "(onehop/.*)"$', lambda m: _flat(m[1], seen), text, flags=re.MULTILINE
    )


_START = (
    _flat("onehop/device.cuh", set())
    + """
// No other number becomes one of a slot by its lower bits.
__device__ inline uint32_t slot_of(uint64_t slot) { return slot < 64 ? slot : 64; }
"""
)
# The parts of each parameter of a call; all are passed as 8-byte integers.
_PARTS = {"lane": ("lane",), "remote": ("base", "size"), "data": ("data", "bytes")}


def _source(symbol: str, parameters: Iterable[str], call: str) -> CUSource:
    """Return the source of a device function that makes a block's call of device.cuh."""
    parts = [part for each in parameters for part in _PARTS.get(each, (each,))]
    lines = ["onehop::BlockGroup block;"]
    if "lane" in parts:
        lines.append("const oh_lane_handle handle = *(const oh_lane_handle*)lane;")
    if "base" in parts:
        lines.append("const oh_remote_memory remote = {base, size};")
    body = " ".join([*lines, f"return {call};"])
    listed = ", ".join(f"uint64_t {part}" for part in parts)
    return CUSource(f'{_START}extern "C" __device__ int {symbol}({listed}) {{ {body} }}', symbol)


def _check(function: str, parameter: str, kind: types.Type) -> None:
    """Reject an argument of the wrong type."""
    if parameter in ("lane", "data"):
        fits = isinstance(kind, types.Array) and kind.layout in ("C", "F")
        wanted = "a contiguous array"
        if fits and parameter == "data" and function in ("get", "recv"):
            fits, wanted = kind.mutable, "an array that is not read-only"
    elif parameter == "remote":
        fits = isinstance(kind, types.BaseTuple) and len(kind) == len(_PARTS["remote"])
        fits = fits and all(isinstance(each, types.Integer) for each in kind)
        wanted = "what device_memory() of a remote region returns"
    else:
        fits, wanted = isinstance(types.unliteral(kind), types.Integer), "an integer"
    if not fits:
        msg = f"onehop.numba.{function}: {parameter} is {kind}; pass {wanted}"
        raise errors.TypingError(msg)


def _device_function(call: str) -> Callable[[_F], _F]:
    """Let kernels make a call of device.cuh; `found` in it is a result besides the fault."""

    def register(function: _F) -> _F:
        name, finds = function.__name__, "found" in call
        parameters = inspect.signature(function).parameters
        symbol = f"onehop_numba_{name}"
        source = _source(symbol, [*parameters, "found"] if finds else parameters, call)
        result = types.Tuple((types.int32, types.uint64)) if finds else types.int32

        def typer(*given: types.Type, **named: types.Type) -> Any:  # noqa: ANN401
            bound = inspect.signature(function).bind(*given, **named).arguments
            for each, kind in bound.items():
                _check(name, each, kind)
            return result

        typer.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        type_callable(function)(lambda _: typer)

        @lower_builtin(function, types.VarArg(types.Any))
        def generate(context: Any, builder: Any, called: Any, values: Any) -> Any:  # noqa: ANN401
            word = ir.IntType(64)
            passed: list[Any] = []
            for each, kind, value in zip(parameters, called.args, values, strict=False):
                if each == "remote":
                    pair = context.cast(builder, value, kind, types.UniTuple(types.uint64, 2))
                    passed += [builder.extract_value(pair, i) for i in range(2)]
                elif isinstance(kind, types.Array):
                    array = context.make_array(kind)(context, builder, value)
                    passed.append(builder.ptrtoint(array.data, word))
                    if each == "data":
                        passed.append(builder.mul(array.nitems, array.itemsize))
                else:
                    passed.append(context.cast(builder, value, kind, types.uint64))
            omitted = [*parameters.values()][len(called.args) :]
            passed += [word(each.default) for each in omitted]
            if finds:
                found = cgutils.alloca_once(builder, word)
                passed.append(builder.ptrtoint(found, word))
            context.active_code_library.add_linking_file(source)
            kind = ir.FunctionType(ir.IntType(32), [word] * len(passed))
            target = cgutils.get_or_insert_function(builder.module, kind, symbol)
            # All threads of the block must make the call together: the compiler must not duplicate
            # it into branches.
            target.attributes.add("convergent")
            fault = builder.call(target, passed, attrs=("convergent",))
            if not finds:
                return fault
            return context.make_tuple(builder, called.return_type, (fault, builder.load(found)))

        return function

    return register


_OUTSIDE = "functions of onehop.numba are called within kernels of numba-cuda"


# ---- What kernels call


@_device_function("onehop::signal(handle, block, slot_of(slot), count)")
def signal(lane: DeviceNDArray, slot: int, count: int = 1) -> int:
    """Add to the peer's count of a slot, behind all that the block has put or stored before."""
    raise TypeError(_OUTSIDE)


@_device_function("onehop::set_signal(handle, block, slot_of(slot), count)")
def set_signal(lane: DeviceNDArray, slot: int, count: int) -> int:
    """Set the peer's count of a slot likewise, to the number of a step for instance.

    For a slot that one block at a time signals, and from which no wait() subtracts.
    """
    raise TypeError(_OUTSIDE)


@_device_function("onehop::wait(handle, block, slot_of(slot), count)")
def wait(lane: DeviceNDArray, slot: int, count: int = 1) -> int:
    """Wait until the count of a slot is `count` or more, and subtract that.

    Then what the peer put before is visible to the block. A wait that fails subtracts nothing.
    """
    raise TypeError(_OUTSIDE)


@_device_function("onehop::wait_until(handle, block, slot_of(slot), least)")
def wait_until(lane: DeviceNDArray, slot: int, least: int) -> int:
    """Wait until the count is `least` or more, and subtract nothing.

    So many blocks may wait for the same signal.
    """
    raise TypeError(_OUTSIDE)


@_device_function("onehop::read_signal(handle, block, slot_of(slot), (uint64_t*)found)")
def read_signal(lane: DeviceNDArray, slot: int) -> tuple[int, int]:
    """Return a fault, and the count of a slot, without waiting.

    What the peer put before the signals that are counted is visible to the block. A loop of it
    ends: the fault is 4 when the host has ended all waits, the count may grow no more.
    """
    raise TypeError(_OUTSIDE)


@_device_function("onehop::put(remote, offset, block, (const void*)data, bytes)")
def put(remote: tuple[int, int], offset: int, data: DeviceNDArray) -> int:
    """Copy an array into the peer's region, from a byte of it on. A signal behind it tells so."""
    raise TypeError(_OUTSIDE)


@_device_function("onehop::get(remote, offset, block, (void*)data, bytes)")
def get(remote: tuple[int, int], offset: int, data: DeviceNDArray) -> int:
    """Fill an array from the peer's region, from a byte of it on.

    With what the peer wrote before a signal that the block has waited for, or older bytes.
    """
    raise TypeError(_OUTSIDE)


@_device_function("onehop::send(handle, block, (const void*)data, bytes)")
def send(lane: DeviceNDArray, data: DeviceNDArray) -> int:
    """Send an array as one message; it may be written again behind the block's next barrier."""
    raise TypeError(_OUTSIDE)


@_device_function("onehop::recv(handle, block, (void*)data, bytes, (uint64_t*)found)")
def recv(lane: DeviceNDArray, data: DeviceNDArray) -> tuple[int, int]:
    """Receive a message into an array; return a fault, and the bytes of the message.

    These are more than the array has if the fault is 1.
    """
    raise TypeError(_OUTSIDE)
