"""The compiled part of onehop: use the package."""

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
    What a call came to: OH_STATUS_LIST of the C API, without its prefixes.
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
    """What has to be rebuilt after an error before the work can go on."""

    NONE = 0
    """nothing: success, or not yet"""

    OPERATION = 1
    """nothing but the operation"""

    LINK = 2
    """the link to the peer"""

    ENDPOINT = 3
    """the endpoint"""

def status_scope(status: Status) -> Scope:
    """What has to be rebuilt after this status."""

def status_text(status: Status) -> str:
    """One line of text for a status."""

def status_list() -> list[tuple[str, int]]:
    """The C API's list of status codes: names and values."""

def transports() -> list[onehop.records.Transport]:
    """The transports of this build: viable here, or why not."""

def config() -> list[onehop.records.Variable]:
    """
    All ONEHOP_* variables: what they mean, what is allowed, and what they are now.
    """

def devices() -> list[onehop.records.Gpu]:
    """
    The GPUs that this process sees. Raises an Error if there is no driver.
    """

def links_from(device: int) -> list[onehop.records.GpuLink]:
    """How a GPU, by its place in devices(), is joined to each of them."""

def numa_nodes() -> list[onehop.records.NumaNode]:
    """The NUMA nodes of this host; none where it does not tell."""

def kernel_image_size() -> int:
    """Bytes of the CUDA kernels in this build; 0 when it has none."""

def metrics() -> dict[str, Any]:
    """
    What this process has moved, how long that took, and what went wrong.

    A dict by the name of the metric, then by the values of its labels, in the order of docs/metrics.md:
    `metrics()["onehop_bytes_total"]["sent"]["shm"]["put"]`. Counters and gauges are ints. A histogram is a dict of
    `count`, `sum` (seconds, or blocks) and `buckets`: for each upper bound, with `math.inf` as the last one, how many
    observations were not above it. A path that nothing has travelled on is not there; every status and reason is.
    Counters are over all endpoints, also closed ones, and never go back. A child of fork() begins at zero.
    """

def prometheus() -> str:
    """
    The same as `metrics()` in Prometheus' text format, version 0.0.4. With ONEHOP_METRICS=HOST:PORT in the
    environment it is served as /metrics from the import of onehop on.
    """

class SharedBuffer:
    """
    Zeroed memory that peers can map, with the buffer protocol; freed when the last view of it is gone.
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
    Registered memory of this process, or a slice of it: region[first:last], in bytes. May be sent and received as any buffer. Keeps its own buffer alive, and is deregistered when it is dropped with all its slices. Create it with Endpoint.register.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice) -> Region:
        """
        A slice; it holds the same registration. OutOfRange: it reaches outside.
        """

    @property
    def descriptor(self) -> bytes:
        """
        Bytes for Peer.attach at a peer, for the whole region: slice the RemoteRegion there. Any holder with a link to this endpoint may read and, unless it was registered with access="r", write the region.
        """

    def deregister(self, timeout: float | None = ...) -> None:
        """
        Ends the region and all its slices: when it returns no peer touches the memory any more.

        TimeoutError: a peer is stopped in the middle of it.
        """

    def __repr__(self) -> str: ...

class RemoteRegion:
    """
    A region of a peer, or a slice of it: remote[first:last], in bytes. Create it with Peer.attach.
    """

    def device_memory(self) -> tuple[int, int]:
        """
        (address, bytes) of the region, or of this slice, as our GPU reaches it: for kernels that put into it. Good until it
        is detached. OperationError with Status.NOT_VIABLE: it cannot be mapped here.
        """

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice) -> RemoteRegion:
        """A slice. OutOfRange: it reaches outside."""

    @property
    def read_only(self) -> bool:
        """Whether its owner has registered it with access="r": puts fail."""

    def detach(self) -> None:
        """Lets go of the peer's memory, for all slices too."""

    def __repr__(self) -> str: ...

class Message:
    """What a receive or a finished request tells."""

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""

    @property
    def tag(self) -> int:
        """The tag it was sent with."""

    @property
    def source(self) -> int:
        """The other side: its rank in a communicator, else the id of its Peer."""

    @property
    def peer_id(self) -> int:
        """The id of the Peer."""

    @property
    def path(self) -> str:
        """How it travelled, such as "inline" or "shm"."""

    @property
    def seconds(self) -> float:
        """
        Of a request, from its post to its end; 0.0: not measured, as it was shorter than 128 KiB.
        """

    def __repr__(self) -> str: ...

class Request:
    """
    One operation in flight. It keeps its buffer alive; dropped too early, the library does until the buffer is free. May be awaited in asyncio.
    """

    def test(self) -> bool:
        """
        Whether it has ended; makes progress. Raises what the operation ended with.
        """

    def wait(self, timeout: float | None = ...) -> Message:
        """
        Waits until it has ended. At the deadline (seconds; None: for ever) it is ended: TimeoutError, or
        OperationError with Status.IN_DOUBT while the peer may still touch the buffer. Ctrl-C leaves it in
        flight.
        """

    def cancel(self) -> bool:
        """
        Ends it; waiting for it then raises OperationError with Status.CANCELLED. False: too late, it has
        ended, or is under way and will end by itself.
        """

    def stream_wait(self, stream: onehop.devices.Stream) -> None:
        """
        What the CUDA stream gets from now on waits until it has ended; the host does not. The stream goes on
        however it ends: test() and wait() tell. Keep the buffer until then. Meanwhile no thread may make a call
        that holds the driver's lock while it waits for the device, or neither ends: the first launch of a kernel, unless
        CUDA_MODULE_LOADING=EAGER, and cudaFree. InvalidArgument: the endpoint has no GPU, or the stream is being
        captured.
        """

    def wait_enqueued(self, stream: onehop.devices.Stream, timeout: float | None = ...) -> None:
        """
        What the CUDA stream gets from now on waits until it has ended. The host waits until a copy engine has
        the message, ours or the peer's: then nothing that threads of either side do holds it up, the first launch of a
        kernel included. What goes another way is waited for to its end. Until then timeout, errors and Ctrl-C are
        those of wait(); afterwards test() and wait() tell, and the stream goes on however it ends. Keep the buffer
        until then. InvalidArgument: the endpoint has no GPU, or the stream is being captured.
        """

    @property
    def buffer_released(self) -> bool:
        """Whether it has ended and its buffer is no longer accessed."""

    @property
    def done(self) -> bool:
        """
        Whether it has ended, well or not. Makes progress; never raises the operation's error.
        """

    @property
    def status(self) -> Status:
        """Its status now: Status.IN_PROGRESS until it has ended."""

    @property
    def message(self) -> Message:
        """What it tells once it has ended well."""

    def __repr__(self) -> str: ...

    def __await__(self) -> Generator[Any, None, Message]:
        """
        Waits in asyncio, without a thread. A task that is cancelled cancels the request.
        """

    def arm(self) -> None:
        """
        Announces its end on the endpoint's event descriptor, with a progress thread behind it: for event loops other than
        asyncio's.
        """

    @property
    def event_fd(self) -> int:
        """The endpoint's event descriptor: see Endpoint.event_fd."""

    def clear_event(self) -> None:
        """
        Makes the event descriptor unreadable again; look at all armed requests afterwards.
        """

    def arm_listed(self) -> None:
        """
        arm(), and take_ended() names it once it has ended: for event loops that wait for many.
        """

    @property
    def key(self) -> int:
        """The number by which take_ended() names it, while it exists."""

    def take_ended(self) -> list[int]:
        """
        Makes the event descriptor unreadable again, and returns the keys of the endpoint's requests that were given
        to arm_listed(), have ended, and were not returned before.
        """

class Group:
    """What onehop.group gives: a context manager."""

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

def group() -> Group:
    """
    For `with onehop.group():` - what this thread gives to streams within it is begun together at its end, each
    stream's in one launch: sends and receives then wait for none of each other. Groups may be nested; only the
    outermost end begins. Those of one lane in one direction follow each other. At most 128 operations a stream.
    Errors of operations may come at the end; it begins what was given also when its body raises.
    """

class OnStream:
    """
    A peer's operations in the order of a CUDA stream: each call enqueues and returns, may be captured into a graph
    and replayed any number of times. Create it with Peer.on.

    Send k of a lane meets receive k of the peer's, never one of Peer.send. What goes wrong after a call has
    returned is told by Peer.async_error. Buffers are GPU memory, of any size and alignment. They are kept until the
    stream is through with them (looked at in later calls; torch tensors by record_stream); those of captured
    operations are not: keep them as long as the graph.
    """

    def send(self, buffer: onehop.buffers.Buffer, lane: SupportsIndex = 0, timeout: float | None = ..., size_from: onehop.buffers.Buffer | None = None) -> None:
        """
        Sends the bytes of a buffer; in the stream's order it may be written again afterwards.

        lane: 0 to 15. timeout: seconds that the GPU waits for the receive, then the lane fails; None for ever; left
        out, ONEHOP_TIMEOUT. size_from: 8 bytes of GPU memory, how many bytes of the buffer to send, read when it runs.
        A message of at most StreamInfo.stream_buffered bytes does not wait for its receive. The first call connects
        the lanes, which blocks: see Peer.warmup. InvalidArgument: host memory, no such lane, or a capture without
        warmup; OperationError with Status.NOT_VIABLE: neither kernels nor the host carry it to the peer.
        """

    def recv(self, buffer: onehop.buffers.Buffer, lane: SupportsIndex = 0, timeout: float | None = ..., size_to: onehop.buffers.Buffer | None = None) -> None:
        """
        Receives a message into a writable buffer of at least its length; what follows on the stream sees its bytes.

        size_to: 8 bytes of GPU memory, where its length is written. The others, and errors, as for send. A longer
        message fails with Status.TRUNCATED, and the lane goes on.
        """

    def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion) -> None:
        """
        Writes the local bytes into the remote region, of the same length, by the copy engine; a signal that follows
        comes after them. Where the region is not mapped here and the peer's streams go by proxy, the host puts them.
        OutOfRange; OperationError with Status.NOT_VIABLE: neither is possible.
        """

    def get(self, local: onehop.buffers.Buffer, remote: RemoteRegion) -> None:
        """
        Reads the remote region into local memory of the same length, as put writes it. Later work of the stream finds the
        bytes; they are what the peer wrote before a signal that the stream has waited for, or later ones. Errors as for put.
        """

    def fetch_add(self, remote: RemoteRegion, value: SupportsIndex, before: onehop.buffers.Buffer | None = None) -> None:
        """
        Adds to an unsigned number of 8 bytes in the peer's memory, modulo 2**64, behind all that the stream did before.

        remote is a slice of 8 bytes whose address is a multiple of 8. before: 8 bytes of GPU memory that get what was
        there. On GPU memory a kernel carries it out: atomic towards those of all kernels and streams, of system scope.
        On host memory the host does, where the peer's streams go by proxy; what fails later leaves 0 in before.
        OutOfRange: not 8 bytes. OperationError: Status.READ_ONLY, RETIRED, or NOT_VIABLE, also where the link has no
        native atomics.
        """

    def compare_swap(self, remote: RemoteRegion, expected: SupportsIndex, value: SupportsIndex, before: onehop.buffers.Buffer | None = None) -> None:
        """Writes value where expected is found. See fetch_add."""

    def signal(self, slot: SupportsIndex, n: SupportsIndex = 1) -> None:
        """
        Adds n to the peer's slot (0 to 63) for us, behind all that the stream did before. Not the count of Peer.signal.
        """

    def wait_signal(self, slot: SupportsIndex, n: SupportsIndex = 1, timeout: float | None = ...) -> None:
        """
        The stream waits until the peer has signalled n more on our slot, and takes them. timeout: as for send; told
        by Peer.async_error.
        """

    def __repr__(self) -> str: ...

    def put_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Puts many blocks, as put does one, by kernels where the region is mapped here.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and remote_offsets[i] of the remote region.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. With two ranges and one length no list is built at all.

        The lists are read during the call, also into a graph.
        OutOfRange names the block that is outside; nothing has moved then. Other errors as for put.
        """

    def get_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Gets many blocks, as get does one, by kernels where the region is mapped here.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and remote_offsets[i] of the remote region.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. With two ranges and one length no list is built at all.

        The lists are read during the call, also into a graph.
        OutOfRange names the block that is outside; nothing has moved then. Other errors as for put.
        """

    def scatter(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Puts contiguous local bytes into many remote blocks.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region; in the local side the blocks lie back to back.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. Else as put_batch and get_batch.
        """

    def gather(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> None:
        """
        Gets many remote blocks into contiguous local memory.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region; in the local side the blocks lie back to back.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. Else as put_batch and get_batch.
        """

    def put_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> None:
        """
        Puts many blocks between many local buffers and many regions, as put_batch does.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at remote_offsets[i] of
        remotes[remote_index[i]]; an index of None stands for zeros. With counts, entry i is a run of counts[i] blocks,
        local_strides[i] and remote_strides[i] bytes apart. Arrays of int64 or uint64 (the indices: int32 or uint32) are not
        copied; other sequences of integers are.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def get_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> None:
        """
        Gets many blocks between many local buffers and many regions, as get_batch does.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at remote_offsets[i] of
        remotes[remote_index[i]]; an index of None stands for zeros. With counts, entry i is a run of counts[i] blocks,
        local_strides[i] and remote_strides[i] bytes apart. Arrays of int64 or uint64 (the indices: int32 or uint32) are not
        copied; other sequences of integers are.

        OutOfRange names the block that is outside; nothing has moved then.
        """

class Peer:
    """
    A connection to one remote endpoint; transfers are made here. Any number of threads may use it.
    """

    def send(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """
        Sends the bytes of a buffer; returns when it may be used again.

        buffer: a Region or a slice of one; anything C-contiguous with the buffer protocol, a tensor with `__dlpack__` or
        an array with `__cuda_array_interface__`. GPU memory needs an Endpoint with device=... .
        tag: 0 to 2**63 - 1. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        after: what is waited for before GPU memory is touched: a stream or an event, None for nothing;
        left out, the stream that the buffer's library works on now. Host memory waits for nothing unless told.
        InvalidArgument; TimeoutError; PeerLost; OperationError with Status.TRUNCATED: the receive is shorter. Ctrl-C
        cancels the send.
        """

    def recv(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """
        Receives a message into a writable buffer of at least its length.

        buffer: a Region or a slice of one; anything C-contiguous with the buffer protocol, a tensor with `__dlpack__` or
        an array with `__cuda_array_interface__`. GPU memory needs an Endpoint with device=... .
        tag: 0 to 2**63 - 1, or onehop.ANY_TAG. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        after: what is waited for before GPU memory is touched: a stream or an event, None for nothing;
        left out, the stream that the buffer's library works on now. Host memory waits for nothing unless told.
        InvalidArgument; TimeoutError; PeerLost; OperationError with Status.TRUNCATED: the message is longer. Ctrl-C
        cancels the receive.
        """

    def isend(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        The same as send, without waiting. OperationError with Status.AGAIN: ONEHOP_MAX_PENDING sends wait for
        their receives; make progress and call again.
        """

    def irecv(self, buffer: onehop.buffers.Buffer, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """The same as recv, without waiting."""

    def notify(self, data: onehop.buffers.Buffer, timeout: float | None = ...) -> None:
        """
        Sends a notification of at most 64 MiB; the peer takes it with Endpoint.notifications. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def signal(self, slot: SupportsIndex, n: SupportsIndex = 1) -> None:
        """
        Adds n to the peer's slot (0 to 63) for us, behind everything put before.
        """

    def wait_signal(self, slot: SupportsIndex, n: SupportsIndex = 1, timeout: float | None = ...) -> None:
        """
        Waits until the peer has signalled n more on our slot, and takes them. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def send_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """
        Sends many blocks as one message; returns when they may be used again.

        Its receive is the next recv_batch or irecv_batch of the peer with this tag, never a recv. Only the sum of the
        lengths counts: the two sides may be cut differently. The bytes go straight into the blocks of the peer where its memory
        can be reached.

        Block i is lengths[i] bytes at offsets[i] of local. Offsets and lengths are arrays of int64 or uint64, which are not copied,
        or sequences of integers; lengths may be one integer for all blocks, and with a range of offsets no list is built at all.
        tag: 0 to 2**62 - 1. timeout is for the receive to come; None for ever; left out, ONEHOP_TIMEOUT. after as for send.

        TimeoutError: no receive has come, nothing was sent; OutOfRange names the block that is outside; PeerLost;
        OperationError with Status.TRUNCATED: the receive is shorter.
        """

    def recv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """
        Receives what send_batch sends into many blocks. A shorter message fills the first bytes of them, in order;
        Message.nbytes says how many.

        Block i is lengths[i] bytes at offsets[i] of local. Offsets and lengths are arrays of int64 or uint64, which are not copied,
        or sequences of integers; lengths may be one integer for all blocks, and with a range of offsets no list is built at all.
        tag: 0 to 2**62 - 1. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT. after: earlier work on the memory, which the call waits for.

        TimeoutError; OutOfRange; PeerLost; OperationError with Status.TRUNCATED: the message is longer, with
        Status.IN_DOUBT: the peer may still write, and the memory is kept until it does not.
        """

    def irecv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        The same as recv_batch, without waiting for the message: so both sides of an exchange can post, then send.
        """

    def probe(self, tag: SupportsIndex = 0, timeout: float | None = ...) -> Message:
        """
        Waits until a message is there for which no receive is posted, and tells nbytes, tag and source. It stays: a
        recv() with its tag gets it, unless another thread is faster. tag: 0 to 2**63 - 1, or onehop.ANY_TAG.
        timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def message_ready(self, tag: SupportsIndex = 0) -> Request:
        """
        A Request that ends when probe() has a message to tell of. It takes nothing.
        """

    def signal_ready(self, slot: SupportsIndex, n: SupportsIndex = 1) -> Request:
        """
        A Request that ends when the peer has signalled n more on our slot. It takes nothing: wait_signal() does.
        """

    def probe_async(self, tag: SupportsIndex = 0, timeout: float | None = ...) -> Coroutine[Any, Any, Message]:
        """probe() in asyncio, without a thread."""

    def wait_signal_async(self, slot: SupportsIndex, n: SupportsIndex = 1, timeout: float | None = ...) -> Coroutine[Any, Any, None]:
        """
        wait_signal() in asyncio, without a thread. A task that is cancelled takes no signal.
        """

    def put(self, local: onehop.buffers.Buffer, remote: RemoteRegion, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Writes the local bytes into the remote region, of the same length. It has ended when they are visible there;
        notify, at most 64 MiB, comes after them. The local side need not be registered.

        after: what is waited for before GPU memory is touched: a stream or an event, None for nothing;
        left out, the stream that the buffer's library works on now. Host memory waits for nothing unless told.
        OutOfRange; OperationError with Status.RETIRED: the peer has deregistered the region.
        """

    def get(self, local: onehop.buffers.Buffer, remote: RemoteRegion, after: onehop.devices.After = CURRENT_STREAM, notify: onehop.buffers.Buffer | None = None) -> Request:
        """
        Reads the remote region into the local bytes, of the same length. notify tells the peer that they were read.
        after and errors as for put.
        """

    def fetch_add(self, remote: RemoteRegion, value: SupportsIndex, timeout: float | None = ...) -> int:
        """
        Adds to an unsigned number of 8 bytes in the peer's memory, modulo 2**64; returns what was there. remote is a slice of
        8 bytes whose address is a multiple of 8. On host memory it is atomic towards fetch_add and compare_swap of all peers, and
        towards atomic operations of the owner's threads; where it is not mapped here, a thread of the owner carries it out.
        On GPU memory a kernel of ours does: see OnStream.fetch_add.

        timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT. It may be carried out yet, also behind PeerLost or Ctrl-C.
        OutOfRange: not 8 bytes. OperationError: Status.RETIRED, READ_ONLY, or NOT_VIABLE: GPU memory that no kernel of
        ours reaches over native atomics.
        """

    def compare_swap(self, remote: RemoteRegion, expected: SupportsIndex, value: SupportsIndex, timeout: float | None = ...) -> int:
        """
        Writes value where expected is found; returns what was there. See fetch_add.
        """

    def put_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Puts many blocks at once.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and remote_offsets[i] of the remote region.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. With two ranges and one length no list is built at all. after as for put.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def get_batch(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, after: onehop.devices.After = CURRENT_STREAM, notify: onehop.buffers.Buffer | None = None) -> Request:
        """
        Gets many blocks at once.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and remote_offsets[i] of the remote region.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. With two ranges and one length no list is built at all. after as for put.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def scatter(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Puts contiguous local bytes into many remote blocks.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region; in the local side the blocks lie back to back.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. after as for put.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def gather(self, local: onehop.buffers.Buffer, remote: RemoteRegion, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, after: onehop.devices.After = CURRENT_STREAM, notify: onehop.buffers.Buffer | None = None) -> Request:
        """
        Gets many remote blocks into contiguous local memory.

        Block i is lengths[i] bytes at remote_offsets[i] of the remote region; in the local side the blocks lie back to back.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. after as for put.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def prepare_put(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> PreparedBatch:
        """
        Prepares many blocks to be put any number of times.

        Each PreparedBatch.post moves the bytes that the memory has then. Where a kernel of the GPU copies, a post takes the
        host the same time however many blocks there are. The local memory is held until the batch is closed.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and remote_offsets[i] of the remote region.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. With two ranges and one length no list is built at all.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def prepare_get(self, local: onehop.buffers.Buffer, remote: RemoteRegion, local_offsets: onehop.buffers.Offsets, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex) -> PreparedBatch:
        """
        Prepares many blocks to be got any number of times.

        Each PreparedBatch.post moves the bytes that the memory has then. Where a kernel of the GPU copies, a post takes the
        host the same time however many blocks there are. The local memory is held until the batch is closed.

        Block i is lengths[i] bytes at local_offsets[i] of the local side and remote_offsets[i] of the remote region.
        Offsets and lengths are arrays of int64 or uint64, which are not copied, or sequences of integers; lengths may be
        one integer for all blocks. With two ranges and one length no list is built at all.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def put_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Puts many blocks between many local buffers and many regions at once. notify comes after all of them.
        after as for put.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at remote_offsets[i] of
        remotes[remote_index[i]]; an index of None stands for zeros. With counts, entry i is a run of counts[i] blocks,
        local_strides[i] and remote_strides[i] bytes apart. Arrays of int64 or uint64 (the indices: int32 or uint32) are not
        copied; other sequences of integers are.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def get_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Gets many blocks between many local buffers and many regions at once. notify tells the peer when all of them
        were read. after as for put.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at remote_offsets[i] of
        remotes[remote_index[i]]; an index of None stands for zeros. With counts, entry i is a run of counts[i] blocks,
        local_strides[i] and remote_strides[i] bytes apart. Arrays of int64 or uint64 (the indices: int32 or uint32) are not
        copied; other sequences of integers are.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def prepare_put_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> PreparedBatch:
        """
        Prepares such a batch to be put any number of times: see prepare_put.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at remote_offsets[i] of
        remotes[remote_index[i]]; an index of None stands for zeros. With counts, entry i is a run of counts[i] blocks,
        local_strides[i] and remote_strides[i] bytes apart. Arrays of int64 or uint64 (the indices: int32 or uint32) are not
        copied; other sequences of integers are.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def prepare_get_regions(self, locals: Iterable[onehop.buffers.Buffer], remotes: Iterable[RemoteRegion], local_index: onehop.buffers.Offsets | None, local_offsets: onehop.buffers.Offsets, remote_index: onehop.buffers.Offsets | None, remote_offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets, counts: onehop.buffers.Offsets | None = None, local_strides: onehop.buffers.Offsets | None = None, remote_strides: onehop.buffers.Offsets | None = None) -> PreparedBatch:
        """
        Prepares such a batch to be got any number of times: see prepare_get.

        Block i is lengths[i] bytes at local_offsets[i] of locals[local_index[i]] and at remote_offsets[i] of
        remotes[remote_index[i]]; an index of None stands for zeros. With counts, entry i is a run of counts[i] blocks,
        local_strides[i] and remote_strides[i] bytes apart. Arrays of int64 or uint64 (the indices: int32 or uint32) are not
        copied; other sequences of integers are.

        OutOfRange names the block that is outside; nothing has moved then.
        """

    def on(self, stream: onehop.devices.Stream) -> OnStream:
        """
        Operations in the order of a CUDA stream of the endpoint's device: of torch, cupy, numba, cuda.core, or a raw one
        as an integer. InvalidType: it is none.
        """

    def warmup(self, timeout: float | None = ...) -> None:
        """
        Connects the lanes now, and makes ready what they need; without it the first operation on a stream does, which
        must not be captured. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT. OperationError with Status.NOT_VIABLE: neither
        kernels nor the host carry what streams say to the peer, and why.
        """

    def device_handle(self, lane: SupportsIndex) -> LaneHandle:
        """
        What kernels of the caller's own use a lane (0 to 15) by. Connects the lanes, if need be.
        """

    def reset_lane(self, lane: SupportsIndex, timeout: float | None = ...) -> None:
        """
        Makes a lane that has failed usable again, at both sides: ends what waits on it, forgets its messages. Either
        side may call, or both. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def stream_info(self) -> onehop.records.StreamInfo:
        """What streams can expect of this peer."""

    def attach(self, descriptor: onehop.buffers.Buffer, timeout: float | None = ...) -> RemoteRegion:
        """
        Attaches a region of this peer by its Region.descriptor. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def info(self) -> onehop.records.PeerInfo:
        """What is known of the link."""

    def stats(self) -> onehop.records.PeerStats:
        """Counters of this link since it was made."""

    def paths(self) -> list[onehop.records.PathRow]:
        """The path of each kind of memory and size, and why: see onehop.paths."""

    def flight_record(self) -> str:
        """The last 1,024 operations that ended on this link, a line each."""

    def async_error(self) -> onehop.errors.Error | None:
        """
        The last error of an operation of ours that had ended well here, and forgets it; or None.
        """

    @property
    def id(self) -> int:
        """Unique in the process."""

    @property
    def rank(self) -> int | None:
        """Its rank in the communicator, or None."""

    def close(self) -> None:
        """Closes the link; operations in flight are cancelled."""

    def __enter__(self) -> Peer: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class PreparedBatch:
    """
    Blocks that were checked and divided once, to be posted any number of times, by any number of threads.

    Create it with Peer.prepare_put or prepare_get; it holds the peer, the remote region and the local memory until it is
    closed or gone.
    """

    def post(self, notify: onehop.buffers.Buffer | None = None, after: onehop.devices.After = CURRENT_STREAM, background: bool = False) -> Request:
        """
        Moves the blocks once, as put_batch and get_batch do; notify (at most 64 MiB) comes after them. In the
        background the call does not copy host memory itself: threads that wait or test a request do so in slices, and what
        is put or got later waits for its turn.

        after: what is waited for before GPU memory is touched: a stream or an event, None for nothing;
        left out, the stream that the buffer's library works on now. Host memory waits for nothing unless told.
        OperationError with Status.RETIRED: the peer has deregistered the region; PeerLost; InvalidArgument: it was closed.
        """

    def close(self) -> None:
        """
        Lets go of all that it holds. Posts that are under way end as they would have.
        """

    def __enter__(self) -> PreparedBatch: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class LaneHandle:
    """
    The oh_lane_handle by which kernels use a lane (onehop/device.cuh): bytes(handle) are the 128 of the struct, to be
    passed to a kernel by value. Create it with Peer.device_handle. Good until the peer is closed.
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
        """Where it begins, in the memory of either side."""

    @property
    def chunks_at(self) -> int:
        """Where the chunks of large messages begin."""

    @property
    def mine(self) -> int:
        """The address of our memory of the lane."""

    @property
    def theirs(self) -> int:
        """The address of the peer's, as it is mapped here."""

    @property
    def chunk_slots(self) -> int:
        """Chunks that are under way at most."""

    @property
    def chunk_shift(self) -> int:
        """A chunk has 2**chunk_shift bytes."""

    @property
    def token(self) -> int:
        """Of an operation that several blocks share; 0: none do."""

    @property
    def follows(self) -> int:
        """The token before it in the same launch; 0: none."""

    @property
    def notice(self) -> int:
        """The address of what lane and host tell each other."""

    @property
    def imports(self) -> int:
        """The address of the peer's mapped memory; 0: none."""

    @property
    def timeout_ns(self) -> int:
        """Nanoseconds after which a wait ends."""

    @property
    def small_max(self) -> int:
        """Messages of more bytes are sent as large ones."""

    @property
    def signals(self) -> int:
        """The address of our counts."""

    @property
    def their_signals(self) -> int:
        """The address of the peer's, as it is mapped here."""

    def __repr__(self) -> str: ...

class Endpoint:
    """
    This process's end on one device: owns links, regions and progress. Any thread may use it. A context manager
    that closes it.
    """

    def __init__(self, device: onehop.devices.Device = None, max_inline: SupportsIndex | None = None, progress_thread: bool = False) -> None:
        """
        device: None, "host" or "cpu" for host memory; for a GPU its number N, "cuda:N", `"GPU-<uuid>"`, or an object with type
        and index, such as torch.device("cuda:1"). An endpoint on a GPU moves host memory too. max_inline: bytes
        asked for inside a control message, 0 to 65536; Peer.info says what was granted. progress_thread: a thread makes
        progress while no thread waits.

        EndpointError: an ONEHOP_* variable is wrong, or libcrypto is missing. OperationError with Status.NOT_VIABLE or
        InvalidArgument: there is no such device here.
        """

    def progress(self) -> None:
        """Makes progress on operations that no thread waits for. Never blocks."""

    def trim(self) -> None:
        """
        Takes back from all peers the device memory that they were shown and that no Region stands for,
        so that a free of it takes effect at once; without it that takes up to 100 ms after the free.
        Memory that is used again is shown again.
        """

    def pools(self) -> dict[str, onehop.records.PoolStats]:
        """
        Counters of the pools of buffers that transfers with other hosts take turns with: "pipeline", host memory
        on its way to UCX, and "staging", device memory. All zero without a link over UCX, or a GPU.
        """

    def notifications(self) -> list[tuple[int, bytes]]:
        """
        The notifications that have come since the last call, oldest first: their source (see Message.source)
        and bytes.
        """

    @property
    def event_fd(self) -> int:
        """
        A descriptor that becomes readable when a request that was awaited or armed has ended. It belongs to the
        endpoint.
        """

    def close(self) -> None:
        """
        Closes all links; operations in flight are cancelled, calls that wait raise. May be called again.
        """

    def __enter__(self) -> Endpoint: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

    @property
    def address(self) -> bytes:
        """
        Bytes that a peer needs to connect. Any holder may connect: pass them on with care.
        """

    def connect(self, address: onehop.buffers.Buffer, timeout: float | None = ...) -> Peer:
        """
        Connects to the endpoint with this address.

        timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        InvalidArgument: no address, or altered. LinkError: it cannot be reached, refuses, or has another key.
        """

    def accept(self, timeout: float | None = ...) -> Peer:
        """
        The next peer that has connected to this endpoint.

        timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def register(self, buffer: onehop.buffers.Buffer, access: Literal["r", "rw"] = "rw") -> Region:
        """
        Registers a buffer, of this endpoint's GPU too, so that peers may read and write it. Memory of
        onehop.empty is reached by plain memory access. With access "r" puts fail, and the buffer may be read-only
        itself: this keeps programs from mistakes, not a hostile peer that reaches the memory by itself.

        InvalidArgument: access is neither "r" nor "rw".
        """

    def wait_notification(self, timeout: float | None = ...) -> tuple[int, bytes]:
        """
        Waits for the next notification: (source, bytes), as of Endpoint.notifications. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def probe(self, tag: SupportsIndex = 0, timeout: float | None = ...) -> Message:
        """
        The next message from any peer for which no receive is posted: see Peer.probe.
        """

    def accept_ready(self) -> Request:
        """
        A Request that ends when accept() has a peer to return. It takes nothing: another thread may be faster.
        """

    def notification_ready(self) -> Request:
        """
        A Request that ends when a notification has come. It takes nothing: another thread may be faster.
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
        """The same without waiting."""

def wait_all(requests: Iterable[Request], timeout: float | None = ...) -> list[Message]:
    """
    Waits until all requests have ended, and returns what they tell, in their order. Those that have not ended at
    the deadline are ended, as by Request.wait. Raises what the first of them that failed ended with, after all
    have ended. They may belong to different endpoints. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT. Ctrl-C leaves them in flight.
    """

def wait_any(requests: Iterable[Request], timeout: float | None = ...) -> int:
    """
    Waits until one of the requests has ended, well or not, and returns its index: the first that has. At the
    deadline TimeoutError; all go on. They may belong to different endpoints. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
    """

class Communicator:
    """
    Ranks 0 to size - 1 that meet at one rendezvous; peers connect on first use. Any thread may use it. A context
    manager that closes it.
    """

    def __init__(self, rank: SupportsIndex | None = None, size: SupportsIndex | None = None, rendezvous: str | None = None, unique_id: onehop.buffers.Buffer | None = None, device: onehop.devices.Device = None, max_inline: SupportsIndex | None = None, progress_thread: bool = False, timeout: float | None = ..., store: onehop.meeting.Store | None = None, comm: onehop.meeting.MpiComm | None = None) -> None:
        """
        Blocks until all ranks have come.

        rendezvous: "tcp://HOST:PORT"; rank 0 serves it, and unless HOST is loopback all ranks need the same
        ONEHOP_SECRET. unique_id: instead, the bytes of onehop.unique_id. store: instead, a torch.distributed.Store or
        anything like it, by which rank 0 tells such an id; where several groups of ranks use one store, give each a
        PrefixStore. comm: instead, an mpi4py communicator, which has rank and size too; all of its ranks call.
        The others as for Endpoint.
        timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        TimeoutError names the ranks that have not come; LinkError with Status.REFUSED: the rank is taken, with
        Status.AUTH: the secret is missing or wrong, with Status.UNREACHABLE: the store fails.
        """

    def send(self, buffer: onehop.buffers.Buffer, dst: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """Sends to the rank dst: see Peer.send. The first use connects."""

    def recv(self, buffer: onehop.buffers.Buffer, src: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """Receives from the rank src, or onehop.ANY_SOURCE: see Peer.recv."""

    def probe(self, src: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ...) -> Message:
        """
        The next message from the rank src, or onehop.ANY_SOURCE, for which no receive is posted: see Peer.probe.
        """

    def isend(self, buffer: onehop.buffers.Buffer, dst: SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Sends to the rank dst without waiting: see Peer.isend. The first use connects, which blocks.
        """

    def irecv(self, buffer: onehop.buffers.Buffer, src: SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Receives from the rank src, or onehop.ANY_SOURCE, without waiting. The first use of a rank connects, which
        blocks.
        """

    def send_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, dst: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> None:
        """Sends many blocks to the rank dst as one message: see Peer.send_batch."""

    def recv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, src: SupportsIndex, tag: SupportsIndex = 0, timeout: float | None = ..., after: onehop.devices.After = CURRENT_STREAM) -> Message:
        """Receives many blocks from the rank src: see Peer.recv_batch."""

    def irecv_batch(self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, lengths: onehop.buffers.Offsets | SupportsIndex, src: SupportsIndex, tag: SupportsIndex = 0, after: onehop.devices.After = CURRENT_STREAM) -> Request:
        """
        Receives many blocks from the rank src without waiting: see Peer.irecv_batch. The first use of a rank connects,
        which blocks.
        """

    def on(self, stream: onehop.devices.Stream) -> CommunicatorOnStream:
        """Operations in the order of a CUDA stream of our device: see Peer.on."""

    def device_handle(self, lane: SupportsIndex) -> CommunicatorHandle:
        """
        What kernels of the caller's own use a lane (0 to 15) of all ranks by, and meet in a barrier. Connects to all ranks, at
        most 64.
        """

    def warmup(self, ranks: Iterable[SupportsIndex] | None = None, timeout: float | None = ...) -> None:
        """
        Connects to these ranks (None: to all) and makes their lanes ready: see Peer.warmup. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    @property
    def rank(self) -> int:
        """Our rank."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def peer(self, rank: SupportsIndex, timeout: float | None = ...) -> Peer:
        """
        The Peer of a rank, connected if need be. Our own rank is one too. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    def reconnect(self, rank: SupportsIndex, timeout: float | None = ...) -> Peer:
        """
        After the link to a rank was lost or closed (LinkError): waits until there is one again, and returns the
        rank's new Peer. The other side calls it too. If that process has ended, start another that creates its
        Communicator with the same rank, size and rendezvous (or unique_id): it joins while rank 0 is in reconnect()
        for it. A communicator whose rank 0 has ended takes no rank back: create another on all ranks. What was under way
        is lost; barriers go on if all others have entered as many as rank 0. At once if the link is well. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        """

    @property
    def endpoint(self) -> Endpoint:
        """
        The communicator's endpoint, for regions and notifications. Closing it closes the communicator.
        """

    def barrier(self, timeout: float | None = ...) -> None:
        """
        Returns when all ranks have called it. After a timeout its ranks are at different barriers: create
        another communicator. timeout: seconds; None for ever; left out, ONEHOP_TIMEOUT.
        PeerLost: a rank is lost, of which all ranks hear.
        """

    def close(self) -> None:
        """
        Closes all links; operations in flight are cancelled, calls that wait raise.
        """

    def __enter__(self) -> Communicator: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class CommunicatorHandle:
    """
    The oh_comm_handle by which kernels use a lane of all ranks (onehop/device.cuh): bytes(handle) are the 8,208 of the
    struct, to be passed to a kernel by value or in device memory. Create it with Communicator.device_handle. Good until
    the communicator is closed.
    """

    def __bytes__(self) -> bytes: ...

    @property
    def rank(self) -> int:
        """Our rank, whose handle is zero."""

    @property
    def size(self) -> int:
        """Ranks."""

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
    Bytes that all ranks of one Communicator are given, by any means. This process serves the rendezvous until all
    ranks have met or ONEHOP_TIMEOUT has passed.
    """

def shut_down() -> None:
    """
    Closes all endpoints and communicators of this process. For its exit: other threads never come back from the
    calls they wait in.
    """

def add_signature(object: object, property: object) -> None:
    """For onehop.signatures."""
