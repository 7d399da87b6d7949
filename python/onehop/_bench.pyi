"""Timed loops of the benchmark."""

from collections.abc import Sequence
import enum
from typing import Annotated

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

    STREAM = 7

    GRAPH = 8

    STREAM_PUT = 9

    GRAPH_PUT = 10

    KERNEL = 11

    KERNEL_SINGLE = 12

    KERNEL_PUT = 13

    BULK = 14

class Memory(enum.Enum):
    """Whose memory a row's bytes are in."""

    HOST = 0

    PINNED = 1

    CUDA = 2

    CUDA_VMM = 3

    CUDA_POOL = 4

    CUDA_ASYNC = 5

    CUDA_MANAGED = 6

class Spec:
    """One row: both sides are given the same."""

    def __init__(self) -> None: ...

    @property
    def mode(self) -> Mode: ...

    @mode.setter
    def mode(self, arg: Mode, /) -> None: ...

    @property
    def size(self) -> int: ...

    @size.setter
    def size(self, arg: int, /) -> None: ...

    @property
    def iterations(self) -> int: ...

    @iterations.setter
    def iterations(self, arg: int, /) -> None: ...

    @property
    def warmup(self) -> int: ...

    @warmup.setter
    def warmup(self, arg: int, /) -> None: ...

    @property
    def window(self) -> int: ...

    @window.setter
    def window(self, arg: int, /) -> None: ...

    @property
    def blocks(self) -> int: ...

    @blocks.setter
    def blocks(self, arg: int, /) -> None: ...

    @property
    def threads(self) -> int: ...

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def strided(self) -> bool: ...

    @strided.setter
    def strided(self, arg: bool, /) -> None: ...

    @property
    def shared(self) -> bool: ...

    @shared.setter
    def shared(self, arg: bool, /) -> None: ...

    @property
    def both(self) -> bool: ...

    @both.setter
    def both(self, arg: bool, /) -> None: ...

    @property
    def memory(self) -> Memory: ...

    @memory.setter
    def memory(self, arg: Memory, /) -> None: ...

    @property
    def offset(self) -> int: ...

    @offset.setter
    def offset(self, arg: int, /) -> None: ...

    @property
    def stamped(self) -> bool: ...

    @stamped.setter
    def stamped(self, arg: bool, /) -> None: ...

    @property
    def corrupt(self) -> bool: ...

    @corrupt.setter
    def corrupt(self, arg: bool, /) -> None: ...

class Outcome:
    """What one side measured and found."""

    @property
    def samples_us(self) -> list[float]: ...

    @property
    def post_us(self) -> list[float]: ...

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

    def latency(self, spec: Spec) -> Outcome: ...

    def bandwidth(self, spec: Spec) -> Outcome: ...

    def batch(self, spec: Spec) -> Outcome: ...

    def setup(self, spec: Spec) -> SetupOutcome: ...

    def why_no_kernels(self) -> str:
        """Why the benchmark's own kernels cannot run; empty: they can."""

class Slots:
    """Messages of a row, and memory for them."""

    def __init__(self, spec: Spec, writer: int, spoils: bool = True, fixed: bool = False, device: str = '') -> None: ...

    def array(self, i: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The slot of message i; of host memory."""

    def memory(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """All slots; of host memory."""

    def address(self, i: int) -> int: ...

    def lay_out(self, number: int, last: bool) -> None:
        """The giving side: new bytes for a pass."""

    def clear(self, number: int) -> None:
        """The taking side: poison before a pass."""

    def mark(self, i: int, last: bool) -> None:
        """The giving side before message i."""

    def expect(self, i: int) -> None:
        """The taking side before message i."""

    def check(self, i: int) -> int:
        """Number of wrong bytes among the stamps of message i."""

    def check_all(self, count: int) -> int:
        """Number of wrong bytes of the last message of each slot."""

    @property
    def nbytes(self) -> int:
        """Of a message."""

class Blocks:
    """Batches of a row, and host memory for them."""

    def __init__(self, spec: Spec, number: int) -> None: ...

    def memory(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    def offset(self, i: int, target: bool) -> int:
        """Where block i lies at the side that starts, or at the target."""

    def lay_out(self, number: int, last: bool) -> None:
        """The giving side: new bytes for a pass."""

    def clear(self, number: int) -> None:
        """The taking side: poison before a pass."""

    def mark(self, i: int, last: bool) -> None:
        """The giving side before message i."""

    def expect(self, i: int) -> None:
        """The taking side before message i."""

    def check(self, i: int) -> int:
        """Number of wrong bytes among the stamps of message i."""

    def check_all(self, count: int) -> int:
        """Number of wrong bytes of the last message of each slot."""

    @property
    def nbytes(self) -> int:
        """Of a message."""

class GpuError(RuntimeError):
    pass

class Gpu:
    """One device, as the driver describes it."""

    @property
    def name(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def pci(self) -> str: ...

    @property
    def numa(self) -> int: ...

    @property
    def major(self) -> int: ...

    @property
    def minor(self) -> int: ...

    @property
    def peers(self) -> list[bool]: ...

class GpuFacts:
    """The driver and its devices."""

    @property
    def library(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def devices(self) -> list[Gpu]: ...

def gpu_facts() -> GpuFacts:
    """Raises GpuError if there is no driver."""

class Yardstick:
    """A side of what onehop is compared with."""

    def __init__(self, number: int, device: str = '') -> None: ...

    def place(self) -> str: ...

    def join(self, place: str) -> None:
        """Finds the page of side 0."""

    def floor(self, spec: Spec, name: str, in_flight: bool) -> Outcome:
        """What the machine does without a library."""

    def why_no_kernels(self) -> str: ...

class Nccl:
    """NCCL between two processes."""

    def __init__(self, side: Yardstick, libraries: Sequence[str]) -> None: ...

    def latency(self, spec: Spec) -> Outcome: ...

    def bandwidth(self, spec: Spec) -> Outcome: ...

    @property
    def init_ms(self) -> float: ...

    @property
    def first_ms(self) -> float: ...

    @property
    def device_bytes(self) -> float: ...

    @property
    def version(self) -> str: ...

class Pattern(enum.Enum):
    """An exchange among ranks."""

    SENDRECV = 0

    SEND_MANY = 1

    RECV_MANY = 2

    ALL_TO_ALL_V = 3

    DISPATCH = 4

class PatternSpec:
    """One row: all ranks are given the same."""

    def __init__(self) -> None: ...

    @property
    def pattern(self) -> Pattern: ...

    @pattern.setter
    def pattern(self, arg: Pattern, /) -> None: ...

    @property
    def size(self) -> int: ...

    @size.setter
    def size(self, arg: int, /) -> None: ...

    @property
    def iterations(self) -> int: ...

    @iterations.setter
    def iterations(self, arg: int, /) -> None: ...

    @property
    def warmup(self) -> int: ...

    @warmup.setter
    def warmup(self, arg: int, /) -> None: ...

    @property
    def graph(self) -> bool: ...

    @graph.setter
    def graph(self, arg: bool, /) -> None: ...

    @property
    def memory(self) -> Memory: ...

    @memory.setter
    def memory(self, arg: Memory, /) -> None: ...

    @property
    def corrupt(self) -> bool: ...

    @corrupt.setter
    def corrupt(self, arg: bool, /) -> None: ...

    def busiest(self, ranks: int) -> int:
        """
        The most bytes that one rank sends to the others, or receives from them.
        """

class PatternRank:
    """A rank of the patterns."""

    def __init__(self, rank: int, ranks: int, device: str, id: bytes) -> None: ...

    def barrier(self) -> None: ...

    def run(self, spec: PatternSpec) -> Outcome: ...

class NcclRank:
    """NCCL's grouped sends and receives."""

    def __init__(self, rank: PatternRank, libraries: Sequence[str]) -> None: ...

    @property
    def version(self) -> str: ...

    def run(self, spec: PatternSpec) -> Outcome: ...
