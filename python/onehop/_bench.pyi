"""Timed loops of the benchmark."""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


class Mode(enum.Enum):
    """How a row moves its bytes."""

    SENDRECV = 0

    PUT = 1

    GET = 2

    PUT_SIGNAL = 3

    EVENT = 4

    PUT_PREPARED = 5

    GET_PREPARED = 6

    PUT_STREAM = 7

    GET_STREAM = 8

    STREAM = 9

    STREAM_PUT = 10

    KERNEL = 11

    KERNEL_SINGLE = 12

    KERNEL_PUT = 13

    BULK = 14

    SEND_MANY = 15

    RECV_MANY = 16

    ALL_TO_ALL_V = 17

    DISPATCH = 18

class Memory(enum.Enum):
    """Whose memory a row's bytes are in."""

    HOST = 0

    PINNED = 1

    CUDA = 2

    CUDA_VMM = 3

    CUDA_POOL = 4

    CUDA_ASYNC = 5

    CUDA_MANAGED = 6

class Op(enum.Enum):
    """Which loop measures a row."""

    LATENCY = 0

    BANDWIDTH = 1

    BATCH = 2

    PATTERNS = 3

class Spec:
    """One row: both sides are given the same."""

    def __init__(self, op: Op, mode: Mode, size: int, iterations: int, warmup: int, window: int, blocks: int, threads: int, strided: bool, shared: bool, graph: bool, both: bool, corrupt: bool, memory: Memory, offset: int, stamped: bool) -> None: ...

    @property
    def op(self) -> Op: ...

    @property
    def mode(self) -> Mode: ...

    @property
    def size(self) -> int: ...

    @property
    def iterations(self) -> int: ...

    @property
    def window(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    @property
    def strided(self) -> bool: ...

class Outcome:
    """What one side measured and found."""

    @property
    def samples_us(self) -> list[float]: ...

    @property
    def post_us(self) -> list[float]: ...

    @post_us.setter
    def post_us(self, arg: Sequence[float], /) -> None: ...

    @property
    def seconds(self) -> float: ...

    @property
    def bytes(self) -> float: ...

    @property
    def wrong(self) -> int: ...

    @property
    def path(self) -> str: ...

class SetupOutcome:
    """What it takes to make a link."""

    @property
    def endpoint(self) -> Outcome: ...

    @property
    def connect(self) -> Outcome: ...

    @property
    def first(self) -> Outcome: ...

    @property
    def further(self) -> Outcome: ...

    @property
    def rss_per_peer(self) -> float: ...

    @property
    def pss_per_peer(self) -> float: ...

    @property
    def device_per_peer(self) -> float: ...

class Side:
    """One side of a link; side 0 measures, side 1 answers."""

    def __init__(self, number: int, device: str = '', max_inline: int | None = None) -> None: ...

    @property
    def created_us(self) -> float: ...

    @property
    def max_inline(self) -> int: ...

    def address(self) -> bytes: ...

    def connect(self, address: bytes) -> None: ...

    def accept(self) -> None: ...

    def close(self) -> None: ...

    def run(self, spec: Spec) -> Outcome: ...

    def setup(self, spec: Spec) -> SetupOutcome: ...

    def why_no_kernel(self, name: str) -> str:
        """Why a kernel of the benchmark cannot run; empty: it can."""

class PythonRow:
    """A row whose operations are functions."""

    def __init__(self, number: int, swap: Callable[[bytes], bytes], spec: Spec, device: str = '') -> None: ...

    def run(self, send: object | None = None, recv: object | None = None, isend: object | None = None, irecv: object | None = None) -> Outcome:
        """Each takes the number of a message; isend, irecv start it."""

    def memory(self, giving: bool) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))] | None:
        """
        Host memory of all slots that this side gives or takes; of a batch all.
        """

    def address(self, giving: bool) -> int:
        """Where such memory is; 0: there is none."""

    def offsets(self, target: bool) -> list[int]:
        """Where a batch's blocks lie at the side that starts, or at the target."""

class GpuError(RuntimeError):
    pass

def cuda_library() -> str:
    """Where the CUDA driver is looked for."""

def cuda_version() -> int:
    """13000: CUDA 13.0. Raises GpuError if there is no driver."""

class Yardstick:
    """A side of what onehop is compared with."""

    def __init__(self, number: int, device: str = '') -> None: ...

    def place(self) -> str: ...

    def join(self, place: str) -> None:
        """Finds the page of side 0."""

    def floor(self, spec: Spec, name: str) -> Outcome:
        """What the machine does without a library."""

    def why_no_kernel(self, name: str) -> str: ...

class PatternRank:
    """A rank of the patterns."""

    def __init__(self, rank: int, ranks: int, device: str, id: bytes) -> None: ...

    def sync(self) -> None: ...

    def run(self, spec: Spec) -> Outcome: ...

def busiest(spec: Spec, ranks: int) -> int:
    """
    The most bytes of a pattern that one rank sends to the others, or receives.
    """

class Nccl:
    """NCCL between two processes, or among ranks."""

    @overload
    def __init__(self, side: Yardstick, libraries: Sequence[str], registered: bool) -> None: ...

    @overload
    def __init__(self, rank: PatternRank, libraries: Sequence[str], registered: bool) -> None: ...

    def run(self, spec: Spec) -> Outcome: ...

    @property
    def init_ms(self) -> float: ...

    @property
    def first_ms(self) -> float: ...

    @property
    def device_bytes(self) -> float: ...

    @property
    def version(self) -> str: ...
