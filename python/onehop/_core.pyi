"""The compiled part of onehop. Use the package."""

from collections.abc import Coroutine, Generator, Iterable
import enum
from typing import Any, Literal, SupportsIndex

import onehop.buffers
import onehop.devices
import onehop.errors
import onehop.meeting
import onehop.records


class Status(enum.IntEnum):
    """
    The status of a call: OH_STATUS_LIST of the C API, without its prefixes.
    """

    OK = 0
    """success"""

    IN_PROGRESS = 1
    """the operation has not ended yet"""

    AGAIN = 2
    """no room now: make progress and call again"""

    INVALID = -1
    """invalid argument"""

    RANGE = -2
    """offset or length outside of the memory named"""

    TRUNCATED = -3
    """the message is longer than the posted receive"""

    TIMEOUT = -4
    """the deadline passed"""

    CANCELLED = -5
    """the operation was cancelled"""

    IN_DOUBT = -6
    """the operation ended, but the peer may still touch its buffer"""

    NOT_VIABLE = -7
    """no viable path"""

    FAULT = -8
    """memory cannot be read or written"""

    RETIRED = -9
    """the remote region was deregistered"""

    NO_RESOURCE = -10
    """a resource is exhausted"""

    READ_ONLY = -11
    """the remote region is read-only"""

    LINK = -20
    """the link failed"""

    PEER_LOST = -21
    """the peer is gone"""

    PROTOCOL = -22
    """the peer broke the protocol"""

    AUTH = -23
    """authentication failed"""

    VERSION = -24
    """wire versions do not fit"""

    UNREACHABLE = -25
    """the address cannot be reached"""

    REFUSED = -26
    """the other side refused"""

    CLOSED = -40
    """the object is closed"""

    FORKED = -41
    """the object belongs to the process before fork()"""

    SYSTEM = -42
    """an operating system call failed"""

    CONFIG = -43
    """a configuration value is wrong"""

    NO_CRYPTO = -44
    """libcrypto is missing, links cannot be authenticated"""

    DEVICE = -45
    """the GPU's context has failed"""

class Scope(enum.IntEnum):
    """What to rebuild after an error before the work can continue."""

    NONE = 0
    """nothing: success, or not yet"""

    OPERATION = 1
    """nothing but the operation"""

    LINK = 2
    """the link to the peer"""

    ENDPOINT = 3
    """the endpoint"""

def status_scope(status: Status) -> Scope:
    """What to rebuild after this status."""

def status_text(status: Status) -> str:
    """One line of text for a status."""

def status_list() -> list[tuple[str, int]]:
    """The C API's list of status codes: names and values."""

def transports() -> list[onehop.records.Transport]:
    """The transports of this build: viable here, or why not."""

def config() -> list[onehop.records.Variable]:
    """All ONEHOP_* variables: meaning, allowed values, and present value."""

def devices() -> list[onehop.records.Gpu]:
    """The GPUs that this process sees. Error: there is no driver."""

def links_from(device: int) -> list[onehop.records.GpuLink]:
    """The links of a GPU, given by its index in devices(), to each of them."""

def numa_nodes() -> list[onehop.records.NumaNode]:
    """The NUMA nodes of this host; empty if the system does not list them."""

def kernel_image_size() -> int:
    """Bytes of the CUDA kernels in this build; 0: built without."""

def metrics() -> dict[str, Any]:
    """
    What this process has moved, how long that took, and what failed.

    A dict by the name of the metric, then by the values of its labels, in the order
    of docs/metrics.md:
    `metrics()["onehop_bytes_total"]["sent"]["shm"]["put"]`. Counters and gauges are
    ints. A histogram is a dict of `count`, `sum` (seconds, or blocks) and
    `buckets`. `buckets` maps each upper bound, the last one `math.inf`, to the
    number of observations that are not above it. Paths that have carried nothing
    are omitted; all statuses and reasons are present.

    Counters cover all endpoints, closed ones too, and never decrease. A child of
    fork() starts at zero.
    """

def prometheus() -> str:
    """
    The same as `metrics()` in Prometheus' text format, version 0.0.4. If the
    environment has ONEHOP_METRICS=HOST:PORT, it is served as /metrics once onehop
    is imported.
    """

class SharedBuffer:
    """
    Zeroed memory that peers can map, with the buffer protocol. It is freed with its
    last view.
    """

    def __init__(self, nbytes: SupportsIndex) -> None: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

class CurrentStream:
    """The type of onehop.CURRENT_STREAM."""

    def __repr__(self) -> str: ...

CURRENT_STREAM: CurrentStream = ...

class Region:
    """
    Registered memory of this process, or a slice of it: region[first:last], in
    bytes. It can be sent and received like any buffer. A Region keeps its buffer
    alive. It is deregistered when it and all its slices are dropped. Create it with
    Endpoint.register.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice) -> Region:
        """
        A slice of the same registration. OutOfRange: it is not within the region.
        """

    @property
    def descriptor(self) -> bytes:
        """
        Bytes for Peer.attach at a peer. They describe the whole region: slice the
        RemoteRegion there. Any holder with a link to this endpoint may read the region
        and, unless it was registered with access="r", write it.
        """

    def deregister(self, timeout: float | None = ...) -> None:
        """
        Deregisters the region and all its slices. After it returns no peer accesses the
        memory.

        TimeoutError: a peer is stopped during an access; keep the memory.
        """

    def __repr__(self) -> str: ...

class RemoteRegion:
    """
    A region of a peer, or a slice of it: remote[first:last], in bytes. Create it
    with Peer.attach.
    """

    def device_memory(self) -> tuple[int, int]:
        """
        (address, size in bytes) of the region or slice, as mapped on this side's GPU:
        for kernels that put into it. Valid until the region is detached. OperationError
        with Status.NOT_VIABLE: it cannot be mapped here.
        """

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice) -> RemoteRegion:
        """A slice. OutOfRange: it is not within the region."""

    @property
    def read_only(self) -> bool:
        """Whether the owner registered it with access="r": puts then fail."""

    def detach(self) -> None:
        """Releases the peer's memory, for all slices too."""

    def __repr__(self) -> str: ...

class Message:
    """The result of a receive or of a finished request."""

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""

    @property
    def tag(self) -> int:
        """The tag it was sent with."""

    @property
    def source(self) -> int:
        """
        The other side: its rank in a communicator, otherwise the id of its Peer.
        """

    @property
    def peer_id(self) -> int:
        """The id of the Peer."""

    @property
    def path(self) -> str:
        """The path that was taken, such as "inline" or "shm"."""

    @property
    def seconds(self) -> float:
        """
        Of a request, from its post to its end. 0.0: not measured, because it was
        shorter than 128 KiB.
        """

    def __repr__(self) -> str: ...

class Request:
    """
    One operation in flight. It keeps its buffer alive. If it is dropped before its
    end, the library keeps the buffer until it is free. It can be awaited in
    asyncio.
    """

    def test(self) -> bool:
        """
        Makes progress and returns whether it has ended. Raises the error of a failed
        operation.
        """

    def wait(self, timeout: float | None = ...) -> Message:
        """
        Waits until it has ended. timeout: seconds; None: no limit. The deadline ends
        the operation: TimeoutError, or OperationError with Status.IN_DOUBT while the
        peer may still access the buffer. Ctrl-C leaves it in flight.
        """

    def cancel(self) -> bool:
        """
        Ends it; wait() then raises OperationError with Status.CANCELLED. Returns False
        if it is too late: it has ended, or it will end by itself.
        """

    def stream_wait(self, stream: onehop.devices.Stream) -> None:
        """
        Makes a CUDA stream wait: work enqueued from now on runs after the request has
        ended. The host does not wait. The stream continues however the request ends;
        test() and wait() report errors. Keep the buffer until the request has ended.

        Deadlock hazard: until then no thread may make a call that holds the driver's
        lock while it waits for the device, such as cudaFree and, unless
        CUDA_MODULE_LOADING=EAGER, the first launch of a kernel. See wait_enqueued().

        InvalidArgument: the endpoint has no GPU, or the stream is being captured.
        """

    def wait_enqueued(self, stream: onehop.devices.Stream, timeout: float | None = ...) -> None:
        """
        Makes a CUDA stream wait: work enqueued from now on runs after the request has
        ended. The host waits only until the copy (ours or the peer's) is enqueued on a
        copy engine. From then on no thread of either process can delay it, not even by
        the first launch of a kernel. If the message does not go by one copy of an
        engine, the host waits for its end.

        Until the call returns, timeout, errors and Ctrl-C are as in wait(). Afterwards
        test() and wait() report errors, and the stream continues however the request
        ends. Keep the buffer until the request has ended. InvalidArgument: the endpoint
        has no GPU, or the stream is being captured.
        """

    @property
    def buffer_released(self) -> bool:
        """Whether it has ended and nothing accesses its buffer any more."""

    @property
    def done(self) -> bool:
        """
        Whether it has ended, with or without an error. Makes progress; never raises the
        operation's error.
        """

    @property
    def status(self) -> Status:
        """The present status: Status.IN_PROGRESS until it has ended."""

    @property
    def message(self) -> Message:
        """The Message of an operation that has succeeded."""

    def __repr__(self) -> str: ...

    def __await__(self) -> Generator[Any, None, Message]:
        """
        Waits in asyncio, without a thread. A task that is cancelled cancels the request.
        """

    def arm(self) -> None:
        """
        Announces its end on the endpoint's event descriptor, and starts the progress
        thread. For event loops other than asyncio's.
        """

    @property
    def event_fd(self) -> int:
        """
        The endpoint's event descriptor for requests that were given to arm(): see Endpoint.event_fd.
        """

    def clear_event(self) -> None:
        """
        Makes the event descriptor unreadable again. Then test all armed requests.
        """

    def arm_listed(self) -> None:
        """
        Makes ended_fd readable once it has ended, and starts the progress thread;
        take_ended() then returns its key. asyncio takes them: do not use one endpoint
        in asyncio and in another loop that takes them.
        """

    @property
    def ended_fd(self) -> int:
        """
        A descriptor of the endpoint, readable while take_ended() has something to
        return.
        """

    @property
    def key(self) -> int:
        """The number by which take_ended() identifies it, while it exists."""

    def take_ended(self) -> list[int]:
        """
        Makes ended_fd unreadable again. Returns the keys of the endpoint's requests
        that were passed to arm_listed(), have ended, and were not returned before.
        """

class Group:
    """The context manager that onehop.group returns."""

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

def group() -> Group:
    """
    Collects the stream operations of this thread in `with onehop.group():`, and
    starts them together at its end, with one launch per stream. Sends and receives
    of a group do not wait for each other, except those of one lane and direction,
    which run in order. Groups may be nested; only the outermost end starts the
    operations. At most 128 operations a stream. Errors of operations may be raised
    at the end. If the body raises, the operations that were collected still start.
    """

class OnStream:
    """
    A peer's operations in the order of a CUDA stream. Each call enqueues and
    returns. Calls may be captured into a graph and replayed any number of times.
    Create it with Peer.on.

    Send k of a lane matches receive k of the peer's lane, never one of Peer.send.
    Peer.async_error reports errors that occur after a call has returned. Buffers
    are GPU memory, of any size and alignment; puts and gets take host memory, too.
    They are kept alive until the stream has finished with them (later calls check;
    torch tensors of messages by record_stream).
    Buffers of captured operations are not kept: keep them as long as the graph.
    """

    def send(self, buffer: onehop.buffers.Buffer, lane: SupportsIndex = 0, timeout: float | None = ..., size_from: onehop.buffers.Buffer | None = None) -> None:
        """
        Sends the bytes of a buffer. Later work of the stream may write the buffer
        again.

        lane: 0 to 15. timeout: seconds that the GPU waits for the receive, then the
        lane fails; None: no limit; omitted: ONEHOP_TIMEOUT. size_from: 8 bytes of GPU
        memory with the number of bytes to send, read when the send runs.

        A message of at most StreamInfo.stream_buffered bytes does not wait for its
        receive. The first call connects the lanes, which blocks: see Peer.warmup.
        InvalidArgument: host memory, no such lane, or a capture without warmup.
        OperationError with Status.NOT_VIABLE: neither kernels nor the host can reach
        the peer.
        """

    def recv(self, buffer: onehop.buffers.Buffer, lane: SupportsIndex = 0, timeout: float | None = ..., size_to: onehop.buffers.Buffer | None = None) -> None:
        """
        Receives a message into a writable buffer of at least its length. Later work of
        the stream sees its bytes.

        size_to: 8 bytes of GPU memory that get the message's length in bytes. Other
        arguments and errors as for send. A longer message fails with Status.TRUNCATED,
        and the lane continues.
        """

    def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion) -> None:
        """
        Writes the local bytes into the remote region of the same length, by the copy
        engine. A signal that follows arrives after them. If the region is not mapped
        here and the peer's streams use the proxy, the host puts them, from GPU memory
        only. With host memory that is neither from onehop.empty nor pinned, the call
        may block until the stream reaches the copy.

        OutOfRange: the lengths differ. InvalidArgument: host memory by the proxy.
        OperationError with Status.NOT_VIABLE: neither way is possible.
        """

    def get(self, local: onehop.buffers.Buffer, remote: RemoteRegion) -> None:
        """
        Reads the remote region into local memory of the same length, by the same ways
        as put. Later work of the stream sees the bytes: those that the peer wrote
        before a signal that the stream has waited for, or later ones. Errors as for
        put.
        """

    def fetch_add(self, remote: RemoteRegion, value: SupportsIndex, before: onehop.buffers.Buffer | None = None) -> None:
        """
        Adds to an unsigned number of 8 bytes in the peer's memory, modulo 2**64, after
        all earlier work of the stream.

        remote: a slice of 8 bytes whose address is a multiple of 8.
        before: 8 bytes of GPU memory that get the previous value.

        On GPU memory a kernel carries it out, at system scope: atomic with those of all
        kernels and streams. On host memory the host does, if the peer's streams use the
        proxy; an error that occurs later leaves 0 in before.

        OutOfRange: not 8 bytes. OperationError with Status.READ_ONLY, RETIRED, or
        NOT_VIABLE: not mapped here, or no native atomics over the link.
        """

    def compare_swap(self, remote: RemoteRegion, expected: SupportsIndex, value: SupportsIndex, before: onehop.buffers.Buffer | None = None) -> None:
        """
        Writes value if it finds expected. Arguments and errors as for fetch_add.
        """

    def signal(self, slot: SupportsIndex, n: SupportsIndex = 1) -> None:
        """
        Adds n to the peer's stream signal slot (0 to 63) for this side, after all
        earlier work of the stream. The counts are separate from those of Peer.signal.
        """

    def wait_signal(self, slot: SupportsIndex, n: SupportsIndex = 1, timeout: float | None = ...) -> None:
        """
        The stream waits until this side's slot has reached n, then subtracts n.
        timeout: as for send; Peer.async_error reports it.
        """

    def __repr__(self) -> str: ...

    def put_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Puts many blocks, as put does one; by kernels if the region is mapped here.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and at
        remote_offsets[i] of the remote region.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Two ranges and one length need no lists at all.

        The call reads the lists before it returns, also in a capture.
        OutOfRange: a block is out of bounds; the text names it, and nothing has moved. Other errors as for put.
        """

    def get_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Gets many blocks, as get does one; by kernels if the region is mapped here.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and at
        remote_offsets[i] of the remote region.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Two ranges and one length need no lists at all.

        The call reads the lists before it returns, also in a capture.
        OutOfRange: a block is out of bounds; the text names it, and nothing has moved. Other errors as for put.
        """

    def scatter(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Puts contiguous local bytes into many remote blocks.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region. The local
        blocks are contiguous.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Otherwise as put_batch and get_batch.
        """

    def gather(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Gets many remote blocks into contiguous local memory.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region. The local
        blocks are contiguous.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Otherwise as put_batch and get_batch.
        """

    def put_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> None:
        """
        Puts blocks of many local buffers into many regions, as put_batch does.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at
        remote_offsets[i] of remotes[remote_index[i]]. An index of None means all zeros.
        With counts, entry i is a run of counts[i] blocks, local_strides[i] and
        remote_strides[i] bytes apart. Arrays of int64 or uint64 (indices: int32 or
        uint32) are not copied; other sequences of integers are.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def get_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> None:
        """
        Gets blocks of many regions into many local buffers, as get_batch does.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at
        remote_offsets[i] of remotes[remote_index[i]]. An index of None means all zeros.
        With counts, entry i is a run of counts[i] blocks, local_strides[i] and
        remote_strides[i] bytes apart. Arrays of int64 or uint64 (indices: int32 or
        uint32) are not copied; other sequences of integers are.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

class Peer:
    """
    A connection to one remote endpoint. Every transfer is a method of a Peer. Any
    number of threads may use it.
    """

    def send(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """
        Sends the bytes of a buffer. Returns when the buffer may be reused.

        buffer: a Region or a slice of one; a C-contiguous object with the buffer
        protocol; a tensor with `__dlpack__`; or an array with
        `__cuda_array_interface__`. GPU memory needs an Endpoint with device=... .
        tag: 0 to 2**63 - 1.
        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        after: the GPU work to wait for before GPU memory is accessed: a stream or an
        event; None: nothing; omitted: the current stream of the buffer's library. For
        host memory the default is to wait for nothing.

        InvalidArgument. TimeoutError. PeerLost. OperationError with Status.TRUNCATED:
        the receive is shorter. Ctrl-C cancels the send.
        """

    def recv(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """
        Receives a message into a writable buffer of at least its length.

        buffer: a Region or a slice of one; a C-contiguous object with the buffer
        protocol; a tensor with `__dlpack__`; or an array with
        `__cuda_array_interface__`. GPU memory needs an Endpoint with device=... .
        tag: 0 to 2**63 - 1, or onehop.ANY_TAG.
        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        after: the GPU work to wait for before GPU memory is accessed: a stream or an
        event; None: nothing; omitted: the current stream of the buffer's library. For
        host memory the default is to wait for nothing.

        InvalidArgument. TimeoutError. PeerLost. OperationError with Status.TRUNCATED:
        the message is longer. Ctrl-C cancels the receive.
        """

    def isend(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Nonblocking send; arguments as for send. OperationError with Status.AGAIN:
        ONEHOP_MAX_PENDING sends already wait for their receives; make progress and call
        again.
        """

    def irecv(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """Nonblocking receive; arguments as for recv."""

    def notify(self, data: onehop.buffers.Buffer, timeout: float | None = ...) -> None:
        """
        Sends a notification of at most 64 MiB. The peer takes it with
        Endpoint.notifications. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def signal(self, slot: SupportsIndex, n: SupportsIndex = 1) -> None:
        """
        Adds n to the peer's signal slot (0 to 63) for this side, after the puts before
        it.
        """

    def wait_signal(self, slot: SupportsIndex, n: SupportsIndex = 1, timeout: float | None = ...) -> None:
        """
        Waits until this side's slot for the peer has reached n, then subtracts n.
        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def send_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """
        Sends many blocks as one message. Returns when their memory may be reused.

        The message matches the peer's next recv_batch or irecv_batch with this tag,
        never a recv. Only the total lengths have to match: the two sides may divide
        them into different blocks. The bytes go straight into the peer's blocks if this
        process can access its memory.

        Block i is lengths[i] bytes at offsets[i] of local. Offsets and lengths are in
        bytes: arrays of int64 or uint64, which are not copied, or sequences of
        integers. lengths may be one integer for all blocks; with a range of offsets it
        needs no list at all.
        tag: 0 to 2**62 - 1.
        timeout: seconds until the receive is posted; None: no limit; omitted:
        ONEHOP_TIMEOUT.
        after: as for send.

        TimeoutError: no receive was posted; nothing was sent. OutOfRange: a block is
        out of bounds; the text names it. PeerLost. OperationError with
        Status.TRUNCATED: the receive is shorter.
        """

    def recv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """
        Receives a message of send_batch into many blocks. A shorter message fills their
        first bytes, in order; Message.nbytes is its length.

        Block i is lengths[i] bytes at offsets[i] of local. Offsets and lengths are in
        bytes: arrays of int64 or uint64, which are not copied, or sequences of
        integers. lengths may be one integer for all blocks; with a range of offsets it
        needs no list at all.
        tag: 0 to 2**62 - 1.
        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        after: earlier work on the memory; the call waits for it.

        TimeoutError. OutOfRange. PeerLost. OperationError with Status.TRUNCATED: the
        message is longer; with Status.IN_DOUBT: the peer may still write, and the
        memory is kept until it cannot.
        """

    def irecv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        As recv_batch, but does not wait for the message. So both sides of an exchange
        can post their receives, then send.
        """

    def probe(self, tag: SupportsIndex = 0, timeout: float | None = ...) -> Message:
        """
        Waits for an unexpected message (one without a posted receive), and returns its
        nbytes, tag and source. The message is not taken: a recv() with its tag gets it,
        unless another thread is faster.

        tag: 0 to 2**63 - 1, or onehop.ANY_TAG. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def message_ready(self, tag: SupportsIndex = 0) -> Request:
        """
        A Request that ends once probe() has a message to return. It takes nothing.
        """

    def signal_ready(self, slot: SupportsIndex, n: SupportsIndex = 1) -> Request:
        """
        A Request that ends once this side's slot has reached n. It takes nothing:
        wait_signal() does.
        """

    def probe_async(self, tag: SupportsIndex = 0, timeout: float | None = ...) -> Coroutine[Any, Any, Message]:
        """probe() in asyncio, without a thread."""

    def wait_signal_async(self, slot: SupportsIndex, n: SupportsIndex = 1, timeout: float | None = ...) -> Coroutine[Any, Any, None]:
        """
        wait_signal() in asyncio, without a thread. A task that is cancelled takes no signal.
        """

    def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Writes the local bytes into the remote region of the same length. The request
        has ended when they are visible there. notify, at most 64 MiB, is a notification
        that follows them. The local memory need not be registered.

        after: the GPU work to wait for before GPU memory is accessed: a stream or an
        event; None: nothing; omitted: the current stream of the buffer's library. For
        host memory the default is to wait for nothing.
        OutOfRange: the lengths differ. OperationError with Status.RETIRED: the peer has
        deregistered the region.
        """

    def get(self, local: onehop.buffers.Buffer, remote: RemoteRegion, after: onehop.devices.After = CURRENT_STREAM, notify: onehop.buffers.Buffer | None = None) -> Request:
        """
        Reads the remote region into the local bytes of the same length. notify is a
        notification that tells the peer that they were read. after and errors as for
        put.
        """

    def fetch_add(self, remote: RemoteRegion, value: SupportsIndex, timeout: float | None = ...) -> int:
        """
        Adds to an unsigned number of 8 bytes in the peer's memory, modulo 2**64; returns what was there. remote is a slice of
        8 bytes whose address is a multiple of 8. On host memory it is atomic towards fetch_add and compare_swap of all peers, and
        towards atomic operations of the owner's threads; where it is not mapped here, a thread of the owner carries it out.
        On GPU memory a kernel of onehop does: see OnStream.fetch_add.

        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT. It may be carried out yet, also behind PeerLost or Ctrl-C.
        OutOfRange: not 8 bytes. OperationError: Status.RETIRED, READ_ONLY, or NOT_VIABLE: GPU memory that no kernel of
        onehop reaches over native atomics.
        """

    def compare_swap(self, remote: RemoteRegion, expected: SupportsIndex, value: SupportsIndex, timeout: float | None = ...) -> int:
        """
        Writes value where expected is found; returns what was there. See fetch_add.
        """

    def put_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Puts many blocks.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and at
        remote_offsets[i] of the remote region.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Two ranges and one length need no lists at all.
        notify is a notification that follows the blocks. after as for put.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def get_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, after: onehop.devices.After = CURRENT_STREAM, notify: onehop.buffers.Buffer | None = None) -> Request:
        """
        Gets many blocks.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and at
        remote_offsets[i] of the remote region.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Two ranges and one length need no lists at all.
        notify is a notification that follows the blocks. after as for put.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def scatter(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Puts contiguous local bytes into many remote blocks.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region. The local
        blocks are contiguous.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks.
        notify is a notification that follows the blocks. after as for put.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def gather(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, after: onehop.devices.After = CURRENT_STREAM, notify: onehop.buffers.Buffer | None = None) -> Request:
        """
        Gets many remote blocks into contiguous local memory.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region. The local
        blocks are contiguous.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks.
        notify is a notification that follows the blocks. after as for put.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def prepare_put(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> PreparedBatch:
        """
        Prepares a put of many blocks for any number of posts.

        Each PreparedBatch.post moves the bytes that the memory holds at that time. If a
        kernel of the GPU copies, the host time of a post does not depend on the number
        of blocks. The local memory is kept until the batch is closed.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and at
        remote_offsets[i] of the remote region.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Two ranges and one length need no lists at all.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def prepare_get(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> PreparedBatch:
        """
        Prepares a get of many blocks for any number of posts.

        Each PreparedBatch.post moves the bytes that the memory holds at that time. If a
        kernel of the GPU copies, the host time of a post does not depend on the number
        of blocks. The local memory is kept until the batch is closed.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and at
        remote_offsets[i] of the remote region.
        Offsets and lengths are in bytes: arrays of int64 or uint64, which are not
        copied, or sequences of integers. lengths may be one integer for all blocks. Two ranges and one length need no lists at all.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def put_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Puts blocks of many local buffers into many regions. notify is a notification
        that follows all of them. after as for put.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at
        remote_offsets[i] of remotes[remote_index[i]]. An index of None means all zeros.
        With counts, entry i is a run of counts[i] blocks, local_strides[i] and
        remote_strides[i] bytes apart. Arrays of int64 or uint64 (indices: int32 or
        uint32) are not copied; other sequences of integers are.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def get_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Gets blocks of many regions into many local buffers. notify is a notification
        that tells the peer that all of them were read. after as for put.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at
        remote_offsets[i] of remotes[remote_index[i]]. An index of None means all zeros.
        With counts, entry i is a run of counts[i] blocks, local_strides[i] and
        remote_strides[i] bytes apart. Arrays of int64 or uint64 (indices: int32 or
        uint32) are not copied; other sequences of integers are.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def prepare_put_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> PreparedBatch:
        """
        Prepares such a batch to be put any number of times: see prepare_put.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at
        remote_offsets[i] of remotes[remote_index[i]]. An index of None means all zeros.
        With counts, entry i is a run of counts[i] blocks, local_strides[i] and
        remote_strides[i] bytes apart. Arrays of int64 or uint64 (indices: int32 or
        uint32) are not copied; other sequences of integers are.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def prepare_get_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> PreparedBatch:
        """
        Prepares such a batch to be got any number of times: see prepare_get.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at
        remote_offsets[i] of remotes[remote_index[i]]. An index of None means all zeros.
        With counts, entry i is a run of counts[i] blocks, local_strides[i] and
        remote_strides[i] bytes apart. Arrays of int64 or uint64 (indices: int32 or
        uint32) are not copied; other sequences of integers are.

        OutOfRange: a block is out of bounds; the text names it, and nothing has moved.
        """

    def on(self, stream: onehop.devices.Stream) -> OnStream:
        """
        Operations in the order of a CUDA stream of the endpoint's device.

        stream: of torch, cupy, numba or cuda.core, or a raw stream as an integer.
        InvalidType: it is not a stream.
        """

    def warmup(self, timeout: float | None = ...) -> None:
        """
        Connects the lanes now and allocates what they need. Otherwise the first stream
        operation does, which must not be captured.

        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT. OperationError with Status.NOT_VIABLE: neither kernels nor the host
        can carry stream operations to the peer; the text says why.
        """

    def device_handle(self, lane: SupportsIndex) -> LaneHandle:
        """
        The handle of a lane (0 to 15) for user kernels. Connects the lanes if
        necessary.
        """

    def reset_lane(self, lane: SupportsIndex, timeout: float | None = ...) -> None:
        """
        Makes a failed lane usable again, at both sides: ends the operations that wait
        on it and discards its messages. Either side, or both, may call. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def stream_info(self) -> onehop.records.StreamInfo:
        """The stream domain of this peer: path, limits and memory."""

    def attach(self, descriptor: onehop.buffers.Buffer, timeout: float | None = ...) -> RemoteRegion:
        """
        Attaches a region of this peer by its Region.descriptor. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def info(self) -> onehop.records.PeerInfo:
        """Facts about the link."""

    def stats(self) -> onehop.records.PeerStats:
        """Counters of this link since it was created."""

    def paths(self) -> list[onehop.records.PathRow]:
        """
        The path for each kind of memory and each size, and why: see onehop.paths.
        """

    def flight_record(self) -> str:
        """The last 1,024 operations that ended on this link, one line each."""

    def async_error(self) -> onehop.errors.Error | None:
        """
        Returns and clears the last error of an operation that had succeeded at this
        side, or None.
        """

    @property
    def id(self) -> int:
        """Unique in the process."""

    @property
    def rank(self) -> int | None:
        """Its rank in the communicator, or None."""

    def close(self) -> None:
        """Closes the link. Operations in flight are cancelled."""

    def __enter__(self) -> Peer: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class PreparedBatch:
    """
    Blocks that were checked and divided once. Any number of threads may post them,
    any number of times.

    Create it with Peer.prepare_put or prepare_get. It holds the peer, the remote
    region and the local memory until it is closed or dropped.
    """

    def post(self, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM, background: bool = False) -> Request:
        """
        Moves the blocks once, as put_batch and get_batch do. notify, at most 64 MiB, is
        a notification that follows them. With background=True the call does not copy
        host memory itself: threads that wait or test a request copy in slices, and
        later puts and gets queue behind it.

        after: the GPU work to wait for before GPU memory is accessed: a stream or an
        event; None: nothing; omitted: the current stream of the buffer's library. For
        host memory the default is to wait for nothing.
        OperationError with Status.RETIRED: the peer has deregistered the region.
        PeerLost. InvalidArgument: the batch is closed.
        """

    def close(self) -> None:
        """Releases everything that it holds. Posts in flight complete."""

    def __enter__(self) -> PreparedBatch: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class LaneHandle:
    """
    The oh_lane_handle by which kernels use a lane (onehop/device.cuh).
    bytes(handle) is the struct of 128 bytes: pass it to a kernel by value. Valid
    until the peer is closed. Create it with Peer.device_handle.
    """

    def __bytes__(self) -> bytes: ...

    @property
    def layout(self) -> int:
        """The version of the struct."""

    @property
    def lane(self) -> int:
        """0 to 15."""

    @property
    def flags(self) -> int:
        """OH_LANE_... of lane.h."""

    @property
    def ring_shift(self) -> int:
        """The ring has 2**ring_shift lines of 16 bytes."""

    @property
    def lines_at(self) -> int:
        """The offset of the ring, in the memory of either side."""

    @property
    def chunks_at(self) -> int:
        """The offset of the chunks of large messages."""

    @property
    def mine(self) -> int:
        """The address of this side's memory of the lane."""

    @property
    def theirs(self) -> int:
        """The address of the peer's memory of the lane, as it is mapped here."""

    @property
    def chunk_slots(self) -> int:
        """The most chunks in flight."""

    @property
    def chunk_shift(self) -> int:
        """A chunk has 2**chunk_shift bytes."""

    @property
    def token(self) -> int:
        """The token of an operation that several blocks share; 0: not shared."""

    @property
    def follows(self) -> int:
        """The token before it in the same launch; 0: none."""

    @property
    def notice(self) -> int:
        """The address of the words that the lane and the host share."""

    @property
    def imports(self) -> int:
        """The address of the peer's mapped memory; 0: none."""

    @property
    def timeout_ns(self) -> int:
        """The limit of each wait, in nanoseconds."""

    @property
    def small_max(self) -> int:
        """Bytes; longer messages are sent as large ones."""

    @property
    def signals(self) -> int:
        """The address of this side's signal counts."""

    @property
    def their_signals(self) -> int:
        """The address of the peer's signal counts, as they are mapped here."""

    def __repr__(self) -> str: ...

class Endpoint:
    """
    This process's end on one device. An endpoint owns links, regions and progress.
    Any thread may use it. A context manager that closes it.
    """

    def __init__(self, device: onehop.devices.Device = None, max_inline: SupportsIndex | None = None, progress_thread: bool = False) -> None:
        """
        Creates an endpoint.

        device: None, "host" or "cpu" for host memory; for a GPU its number N, "cuda:N",
        `"GPU-<uuid>"`, or an object with type and index, such as
        torch.device("cuda:1"). An endpoint on a GPU moves host memory too.
        max_inline: bytes to carry inside a control message, 0 to 65536; Peer.info
        returns the granted value.
        progress_thread: a thread makes progress while no thread waits.

        EndpointError: an ONEHOP_* variable is invalid, or libcrypto was not found.
        OperationError with Status.NOT_VIABLE, or InvalidArgument: the process has no
        such device.
        """

    def progress(self) -> None:
        """
        Makes progress on the operations that no thread waits for. Never blocks.
        """

    def trim(self) -> None:
        """
        Withdraws the device memory that peers have mapped for transfers without a
        Region. A free of that memory then takes effect at once; otherwise it takes up
        to 100 ms. Memory that is used again is mapped again.
        """

    def pools(self) -> dict[str, onehop.records.PoolStats]:
        """
        Counters of the pools of buffers for transfers to and from other hosts:
        "pipeline", host memory on its way to UCX, and "staging", pinned memory that
        carries device memory. All zero without a link over UCX, or without a GPU.
        """

    def notifications(self) -> list[tuple[int, bytes]]:
        """
        Takes the notifications that have arrived, oldest first: (source, bytes) each.
        For the source see Message.source.
        """

    @property
    def event_fd(self) -> int:
        """
        A descriptor that becomes readable when a request that was passed to
        Request.arm() has ended. The endpoint owns it.
        """

    def close(self) -> None:
        """
        Closes all links. Operations in flight are cancelled; blocked calls raise. May
        be called again.
        """

    def __enter__(self) -> Endpoint: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

    @property
    def address(self) -> bytes:
        """
        The address by which peers connect, as bytes. Any holder may connect: treat it
        as a secret.
        """

    def connect(self, address: onehop.buffers.Buffer, timeout: float | None = ...) -> Peer:
        """
        Connects to the endpoint that has this address.

        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        InvalidArgument: not an address, or altered. LinkError: it cannot be reached,
        refuses, or has another key.
        """

    def accept(self, timeout: float | None = ...) -> Peer:
        """
        Waits for the next peer that connects to this endpoint.

        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def register(self, buffer: onehop.buffers.Buffer, access: Literal["r", "rw"] = "rw") -> Region:
        """
        Registers a buffer, also one on this endpoint's GPU, so that peers may read and
        write it. Peers access memory of onehop.empty by plain loads and stores. With
        access "r" puts fail, and the buffer itself may be read-only. This guards
        against mistakes, not against a hostile peer: one that can access the memory
        directly can write to it.

        InvalidArgument: access is neither "r" nor "rw".
        """

    def wait_notification(self, timeout: float | None = ...) -> tuple[int, bytes]:
        """
        Waits for the next notification and takes it: (source, bytes), as in
        Endpoint.notifications. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def probe(self, tag: SupportsIndex = 0, timeout: float | None = ...) -> Message:
        """
        The next message from any peer without a posted receive: see Peer.probe.
        """

    def accept_ready(self) -> Request:
        """
        A Request that ends once accept() has a peer to return. It takes nothing:
        another thread may be faster.
        """

    def notification_ready(self) -> Request:
        """
        A Request that ends once a notification has arrived. It takes nothing: another
        thread may be faster.
        """

    def connect_async(self, address: onehop.buffers.Buffer, timeout: float | None = ...) -> Coroutine[Any, Any, Peer]:
        """
        connect() in asyncio. Where the task is cancelled, a link that still comes is closed.
        """

    def accept_async(self, timeout: float | None = ...) -> Coroutine[Any, Any, Peer]:
        """accept() in asyncio, without a thread."""

    def wait_notification_async(self, timeout: float | None = ...) -> Coroutine[Any, Any, tuple[int, bytes]]:
        """wait_notification() in asyncio, without a thread."""

    def recv(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """Receives from whichever peer sends first: see Peer.recv."""

    def irecv(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """Nonblocking receive from whichever peer sends first."""

def wait_all(requests: Iterable[Request], timeout: float | None = ...) -> list[Message]:
    """
    Waits until all requests have ended, and returns their Messages in order. The
    deadline ends the others, as in Request.wait. Raises the error of the first
    request in the list that failed, after all have ended. The requests may belong
    to different endpoints. Ctrl-C leaves them in flight.

    timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
    """

def wait_any(requests: Iterable[Request], timeout: float | None = ...) -> int:
    """
    Waits until one of the requests has ended, with or without an error, and returns
    the index of the first that has. TimeoutError at the deadline; all stay in
    flight. The requests may belong to different endpoints.

    timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
    """

class Communicator:
    """
    Ranks 0 to size - 1 that meet at one rendezvous. Peers connect on first use. Any
    thread may use it. A context manager that closes it.
    """

    def __init__(self, rank: SupportsIndex | None = None, size: SupportsIndex | None = None, rendezvous: str | None = None, unique_id: onehop.buffers.Buffer | None = None, device: onehop.devices.Device = None, max_inline: SupportsIndex | None = None, progress_thread: bool = False, timeout: float | None = ..., store: onehop.meeting.Store | None = None, comm: onehop.meeting.MpiComm | None = None) -> None:
        """
        Blocks until all ranks have joined.

        rendezvous: "tcp://HOST:PORT", served by rank 0. Unless HOST is loopback, all
        ranks need the same ONEHOP_SECRET.
        unique_id: instead, the bytes of onehop.unique_id.
        store: instead, a torch.distributed.Store or an object like it, through which
        rank 0 passes an id. If several groups of ranks use one store, give each a
        PrefixStore.
        comm: instead, an mpi4py communicator, which also gives rank and size. All of
        its ranks must call.
        device, max_inline, progress_thread: as for Endpoint.
        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.

        TimeoutError names the missing ranks. LinkError with Status.REFUSED: the rank is
        taken; with Status.AUTH: the secret is missing or wrong; with
        Status.UNREACHABLE: the store fails.
        """

    def send(self, buffer: onehop.buffers.Buffer, dst: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """Sends to rank dst: see Peer.send. The first use connects."""

    def recv(self, buffer: onehop.buffers.Buffer, src: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """Receives from rank src, or onehop.ANY_SOURCE: see Peer.recv."""

    def probe(self, src: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ...) -> Message:
        """
        The next message without a posted receive from rank src, or onehop.ANY_SOURCE:
        see Peer.probe.
        """

    def isend(self, buffer: onehop.buffers.Buffer, dst: SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Nonblocking send to rank dst: see Peer.isend. The first use connects, which
        blocks.
        """

    def irecv(self, buffer: onehop.buffers.Buffer, src: SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Nonblocking receive from rank src, or onehop.ANY_SOURCE. The first use of a rank
        connects, which blocks.
        """

    def send_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, dst: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """Sends many blocks to rank dst as one message: see Peer.send_batch."""

    def recv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, src: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """Receives many blocks from rank src: see Peer.recv_batch."""

    def irecv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, src: SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Nonblocking receive of many blocks from rank src: see Peer.irecv_batch. The
        first use of a rank connects, which blocks.
        """

    def on(self, stream: onehop.devices.Stream) -> CommunicatorOnStream:
        """
        Operations in the order of a CUDA stream of the endpoint's device: see Peer.on.
        """

    def device_handle(self, lane: SupportsIndex) -> CommunicatorHandle:
        """
        The handle of a lane (0 to 15) of all ranks, for user kernels and their barrier.
        Connects to all ranks, at most 64.
        """

    def warmup(self, ranks: Iterable[SupportsIndex] | None = None, timeout: float | None = ...) -> None:
        """
        Connects to these ranks (None: all) and prepares their lanes: see Peer.warmup.
        timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    @property
    def rank(self) -> int:
        """The own rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def peer(self, rank: SupportsIndex, timeout: float | None = ...) -> Peer:
        """
        The Peer of a rank. Connects if there is no link yet. The own rank has a Peer
        too. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.
        """

    def reconnect(self, rank: SupportsIndex, timeout: float | None = ...) -> Peer:
        """
        Waits for a new link to a rank whose link was lost or closed (LinkError), and
        returns its new Peer. The other side must call it too. Returns at once if the
        link works. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.

        If the rank's process has ended, start another one that creates its Communicator
        with the same rank, size and rendezvous (or unique_id). It joins while rank 0 is
        in reconnect() for it. If rank 0 itself has ended, create another communicator
        on all ranks. Operations in flight are lost. Barriers continue if all other
        ranks have entered as many as rank 0.
        """

    @property
    def endpoint(self) -> Endpoint:
        """
        The communicator's endpoint, for regions and notifications. Closing it closes
        the communicator.
        """

    def barrier(self, timeout: float | None = ...) -> None:
        """
        Returns once all ranks have called it. timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT.

        PeerLost, at every rank: a rank is lost. After TimeoutError the ranks may be at
        different barriers: create another communicator.
        """

    def close(self) -> None:
        """
        Closes all links. Operations in flight are cancelled; blocked calls raise.
        """

    def __enter__(self) -> Communicator: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class CommunicatorHandle:
    """
    The oh_comm_handle by which kernels use a lane of all ranks (onehop/device.cuh).
    bytes(handle) is the struct of 8,208 bytes: pass it to a kernel by value or in
    device memory. Valid until the communicator is closed. Create it with
    Communicator.device_handle.
    """

    def __bytes__(self) -> bytes: ...

    @property
    def rank(self) -> int:
        """The own rank; its entry is zero."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def __repr__(self) -> str: ...

class CommunicatorOnStream:
    """
    A communicator's operations in the order of a CUDA stream: see OnStream. Create it with Communicator.on.
    """

    def send(self, buffer: onehop.buffers.Buffer, dst: SupportsIndex, lane: SupportsIndex = 0, timeout: float | None = ..., size_from: onehop.buffers.Buffer | None = None) -> None:
        """
        Sends to the rank dst: see OnStream.send. The first use connects, which blocks.
        """

    def recv(self, buffer: onehop.buffers.Buffer, src: SupportsIndex, lane: SupportsIndex = 0, timeout: float | None = ..., size_to: onehop.buffers.Buffer | None = None) -> None:
        """
        Receives from the rank src: see OnStream.recv. The first use connects, which blocks.
        """

    def __repr__(self) -> str: ...

ANY_TAG: int = 18446744073709551615

ANY_SOURCE: int = -1

def version() -> str:
    """The version of the library."""

def unique_id() -> bytes:
    """
    The id that all ranks of one Communicator share, as bytes. Pass it to them by
    any means. This process serves the rendezvous until all ranks have joined, or
    until ONEHOP_TIMEOUT.
    """

def shut_down() -> None:
    """
    Closes all endpoints and communicators of this process. For the process's exit:
    threads blocked in a call never return from it.
    """

def add_signature(object: object, property: object) -> None:
    """For onehop.signatures."""
