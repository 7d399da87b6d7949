# SPDX-License-Identifier: Apache-2.0
"""Point-to-point transfers by the shortest available path; each reports the path that it took.

onehop.patterns has exchanges between all ranks on a stream. User kernels include onehop/device.cuh
(see get_include()) and take a Peer.device_handle. Kernels in Triton import onehop.triton, those in
Numba import onehop.numba.
"""

import atexit
import importlib
import os
from pathlib import Path

from onehop import _core, patterns, signatures
from onehop._core import (
    ANY_SOURCE,
    ANY_TAG,
    CURRENT_STREAM,
    Communicator,
    CommunicatorHandle,
    CommunicatorOnStream,
    CurrentStream,
    Endpoint,
    Group,
    LaneHandle,
    Message,
    OnStream,
    Peer,
    PreparedBatch,
    Region,
    RemoteRegion,
    Request,
    Scope,
    Status,
    config,
    group,
    metrics,
    prometheus,
    unique_id,
    wait_all,
    wait_any,
)
from onehop.buffers import Buffer, Offsets, empty
from onehop.devices import After, Device, Stream
from onehop.errors import (
    EndpointError,
    Error,
    InvalidArgument,
    InvalidType,
    LinkError,
    OperationError,
    OutOfRange,
    PeerLost,
    TimeoutError,  # noqa: A004
)
from onehop.records import (
    Counter,
    Gpu,
    GpuLink,
    Info,
    NumaNode,
    PathRow,
    Paths,
    PeerInfo,
    PeerStats,
    PoolStats,
    StreamInfo,
    Topology,
    Transport,
    Variable,
    info,
    paths,
    topology,
)

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "CURRENT_STREAM",
    "After",
    "Buffer",
    "Communicator",
    "CommunicatorHandle",
    "CommunicatorOnStream",
    "Counter",
    "CurrentStream",
    "Device",
    "Endpoint",
    "EndpointError",
    "Error",
    "Gpu",
    "GpuLink",
    "Group",
    "Info",
    "InvalidArgument",
    "InvalidType",
    "LaneHandle",
    "LinkError",
    "Message",
    "NumaNode",
    "Offsets",
    "OnStream",
    "OperationError",
    "OutOfRange",
    "PathRow",
    "Paths",
    "Peer",
    "PeerInfo",
    "PeerLost",
    "PeerStats",
    "PoolStats",
    "PreparedBatch",
    "Region",
    "RemoteRegion",
    "Request",
    "Scope",
    "Status",
    "Stream",
    "StreamInfo",
    "TimeoutError",
    "Topology",
    "Transport",
    "Variable",
    "__version__",
    "config",
    "empty",
    "get_include",
    "get_library_dir",
    "group",
    "info",
    "metrics",
    "paths",
    "patterns",
    "prometheus",
    "topology",
    "unique_id",
    "wait_all",
    "wait_any",
]

__version__ = _core.version()


def get_library_dir() -> str:
    """Return the folder that contains the library.

    For the linker's -L, with `-lonehop`. To open it at run time (ctypes, dlopen), use the name
    `libonehop.so.0`.
    """
    return str(Path(_core.__file__).parent)


def get_include() -> str:
    """Return the folder of the C and C++ headers, for `#include "onehop/onehop.h"`."""
    return str(Path(_core.__file__).parent / "include")


signatures.show()
# Before the interpreter exits: peers see a clean end, and threads that wait stop.
atexit.register(_core.shut_down)
if os.environ.get("ONEHOP_METRICS"):
    importlib.import_module("onehop.metrics_server").start()
