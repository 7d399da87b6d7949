# SPDX-License-Identifier: Apache-2.0
"""Subscriber: pulls tensors from publishers into tensors of an inference engine."""

# ruff: noqa: ANN401 - tensors are of any library

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import onehop
from onehop import CURRENT_STREAM, Endpoint, Region, Status
from onehop.deadline import Deadline, Timeout
from onehop.devices import After
from onehop.errors import InvalidArgument
from onehop.errors import TimeoutError as OnehopTimeoutError
from onehop.weights import table as tables_
from onehop.weights.assign import Missing, Want, assign
from onehop.weights.errors import PublisherLost, again
from onehop.weights.hub import Hub, Kind, Link, may_wait
from onehop.weights.inquiry import Gone, Inquiries, Lease, Target, gone_if_ended
from onehop.weights.mover import Mover
from onehop.weights.plan import Plan
from onehop.weights.tensors import Memory, describe, gather
from onehop.weights.turns import Turn, Turns

__all__ = ["Published", "Pull", "Pulling", "Subscriber"]


@dataclass(frozen=True)
class Published:
    """A whole tensor that publishers have. `itemsize` is the bytes of an element."""

    dtype: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Pull:
    """The result of a pull.

    Attributes:
        version: of all tensors.
        bytes: that were read.
        seconds: from the call to the end, leases included.
        paths: the path that was taken, by the publisher's name.

    """

    version: int
    bytes: int
    seconds: float
    paths: dict[str, str]


class Pulling:
    """A pull in a thread of its own: wait(), or await it."""

    def __init__(self, outcome: Future[Pull | Exception]) -> None:
        self._outcome = outcome

    @property
    def done(self) -> bool:
        """Whether it has ended, with or without an error."""
        return self._outcome.done()

    def wait(self, timeout: Timeout = ...) -> Pull:
        """Return the Pull, or raise its error. TimeoutError: the pull continues."""
        deadline = Deadline(timeout)
        try:
            outcome = self._outcome.result(deadline.left)
        except concurrent.futures.TimeoutError:
            msg = f"a pull was waited for {deadline.seconds:g} s, and goes on"
            raise OnehopTimeoutError(Status.TIMEOUT, msg) from None
        return _pulled(outcome)

    def __await__(self) -> Generator[Any, None, Pull]:
        # A cancelled task does not cancel the pull, which writes the tensors until it has ended.
        outcome = asyncio.shield(asyncio.wrap_future(self._outcome))
        return _pulled((yield from outcome.__await__()))


def _outcome(pull: Callable[..., Pull], *arguments: object) -> Pull | Exception:
    """Return what a pull returns or raises."""
    try:
        return pull(*arguments)
    except Exception as failure:
        return failure


def _pulled(outcome: Pull | Exception) -> Pull:
    """Return the outcome of a pull, or raise it. Each caller gets an exception of its own."""
    if isinstance(outcome, Exception):
        raise again(outcome)
    return outcome


class Subscriber:
    """Pulls versions of tensors, each tensor from the publishers that have its parts.

        subscriber.want("w", tensor); subscriber.prepare()
        version = subscriber.wait_version(1); subscriber.pull(version)

    Use the endpoint for publishers and subscribers only: they accept its links and take its
    notifications. close() does not close it. Threading: any thread; pulls run one after the other.
    """

    def __init__(
        self, endpoint: Endpoint, tables: Sequence[bytes], *, name: str, timeout: Timeout = ...
    ) -> None:
        """Read the tables of all publishers: the bytes of Publisher.seal of each.

        endpoint: on the device of the tensors. name: unique among subscribers, since begin() of a
        publisher reports it; it also decides at which of several replicas a pull starts; at most
        1,024 bytes. timeout: seconds, the default of all calls; None: no limit; omitted:
        ONEHOP_TIMEOUT. TableError: the bytes are not a table. InvalidArgument: two tables are of
        one publisher.
        """
        if not 0 < len(name.encode()) <= tables_.NAME_MAX:
            msg = f"a subscriber's name of {len(name.encode())} bytes: give 1 to {tables_.NAME_MAX}"
            raise InvalidArgument(Status.INVALID, msg)
        self.name = name
        self._timeout = timeout
        self._tables = [tables_.parse(one) for one in tables]
        names = [one.publisher for one in self._tables]
        if twice := sorted({one for one in names if names.count(one) > 1}):
            msg = f"several tables are of publisher {', '.join(map(repr, twice))}: names differ"
            raise InvalidArgument(Status.INVALID, msg)
        self._endpoint = endpoint
        self._wants: list[Want] = []
        self._lost: set[str] = set()
        self._plan: Plan | None = None
        self._memory: Memory | None = None
        self._regions: list[Region] = []
        self._turns = Turns(name)
        self._mover = Mover(name)
        self._background = ThreadPoolExecutor(1, "onehop-weights-pull")  # it starts on demand
        self._inquiries = Inquiries(name, secrets.randbits(64))
        self._hub = Hub.join(endpoint, self._inquiries.token, self._inquiries)

    # ---- Wants

    def tensors(self) -> dict[str, Published]:
        """Return the tensors that the publishers have together, by name."""
        found: dict[str, Published] = {}
        for table in self._tables:
            sizes = table.itemsizes.tolist()
            for row, name in enumerate(table.names):
                if name not in found:
                    dtype = int(table.dtype[row])
                    shape = table.shape[row, table.shape.shape[1] - int(table.ndim[row]) :]
                    found[name] = Published(
                        table.dtypes[dtype], tuple(shape.tolist()), sizes[dtype]
                    )
        return found

    def want(
        self,
        name: str,
        tensor: Any,
        *,
        start: Sequence[int] | None = None,
        dtype: str | None = None,
        part: int = 0,
    ) -> None:
        """Request a tensor, or a box of it. Call prepare() next.

        tensor: C-contiguous and writable; pulls fill it. Do not move or free its memory before
        close(). start: the box's start in the whole tensor, in elements; omitted: the whole tensor.
        dtype: "bfloat16", ... of elements that are given as bytes or unsigned integers. part: the
        part of pull_parts() that fills it; tensors of different parts may share memory.
        InvalidArgument: it is not contiguous, or the box has other dimensions than the tensor.
        """
        found = describe(name, tensor, dtype)
        at = None if start is None else tuple(map(int, start))
        if at is not None and len(at) != len(found.shape):
            msg = f"tensor {name!r} of shape {found.shape} is wanted at start={at}"
            raise InvalidArgument(Status.INVALID, f"{msg}: give as many numbers")
        deadline = self._deadline()
        with self._turns.take("want()", deadline):
            self._forget(deadline)
            self._wants.append(Want(name, found, at, int(part)))

    def prepare(self) -> Plan:
        """Decide which publisher sends what, connect to them, and prepare the batches.

        Lost publishers are left out if others have their parts. InvalidArgument names the tensor
        and box: no publisher has a part of it, or dtype or shape differ. PublisherLost: all that
        have a part are lost. Other errors are those of Endpoint.connect and Peer.attach.
        """
        deadline = self._deadline()
        with self._turns.take("prepare()", deadline):
            return self._prepared(deadline)

    def _prepared(self, deadline: Deadline) -> Plan:
        if self._plan is not None:
            return self._plan
        if not self._wants:
            msg = f"subscriber {self.name!r} wants nothing yet: call want() first"
            raise InvalidArgument(Status.INVALID, msg)
        while True:
            plan = self._assigned()
            try:
                links = {table.publisher: self._link(table, deadline) for table in plan.tables}
                plan.prepare(links, self._local_memory(deadline), self._regions, deadline)
            except Gone as gone:
                plan.close()
                self._lost.update(gone.names)
            except BaseException:
                plan.close()
                raise
            else:
                self._plan = plan
                return plan

    def _assigned(self) -> Plan:
        alive = [table for table in self._tables if table.publisher not in self._lost]
        try:
            return Plan(self._wants, alive, assign(self._wants, alive, self.name))
        except Missing as missing:
            if not self._lost:
                raise
            lost = sorted(self._lost)
            names = ", ".join(map(repr, lost))
            text = f"publisher {names} is gone: {missing}; the targets are undefined"
            raise PublisherLost(text, lost) from None

    def _link(self, table: tables_.Table, deadline: Deadline) -> Link:
        with gone_if_ended(table.publisher):
            return self._hub.connect(table.address, deadline)

    def _local_memory(self, deadline: Deadline) -> Memory:
        if self._memory is None:
            self._forget(deadline)  # the regions that an earlier call left when it failed
            memory = gather([want.tensor for want in self._wants])
            for piece in memory.pieces:
                self._regions.append(self._endpoint.register(piece))
            self._memory = memory
        return self._memory

    def _forget(self, deadline: Deadline) -> None:
        """Release the plan and its memory. TimeoutError: a peer is stopped during an access."""
        if self._plan is not None:
            self._plan.close()
        self._plan = self._memory = None
        while self._regions:
            with contextlib.suppress(onehop.EndpointError):
                self._regions[-1].deregister(deadline.left)
            self._regions.pop()

    # ---- Versions

    def wait_version(self, at_least: int, timeout: Timeout = ...) -> int:
        """Wait until all publishers have one version, not below this one. Return that version.

        TimeoutError names the publishers that do not have it. PublisherLost as for pull().
        """
        deadline = self._deadline(timeout)
        with self._turns.take(f"wait_version({at_least})", deadline):
            while True:
                plan = self._prepared(deadline)
                try:
                    return self._agreed(_targets(plan), at_least, deadline)
                except Gone as gone:
                    self._replan(gone)

    def _agreed(self, targets: list[Target], at_least: int, deadline: Deadline) -> int:
        versions: dict[str, int] = {}
        behind = targets
        while behind:
            asked = [(one, self._inquiries.ask(one, Kind.WAIT, at_least)) for one in behind]
            numbers = [number for _, number in asked]
            try:
                what = f"wait_version({at_least})"
                answers = self._inquiries.answers(numbers, deadline, what)
            except BaseException:
                for target, number in asked:
                    self._inquiries.drop(target, number)
                raise
            for one, answer in zip(behind, answers, strict=True):
                versions[one.name] = answer.value
            at_least = max(versions.values(), default=at_least)
            behind = [one for one in targets if versions[one.name] < at_least]
        return at_least

    # ---- Pulls

    def pull(
        self, version: int | None = None, timeout: Timeout = ..., after: After = CURRENT_STREAM
    ) -> Pull:
        """Fill all tensors with one version. Return the Pull.

        version: the version to pull; None: the one that all publishers have now. timeout: seconds;
        None: no limit; omitted: that of the subscriber. after: the GPU work to wait for, as for
        Peer.get. When the call returns the tensors are filled, for work of any stream.

        If a publisher is lost meanwhile, others that have its parts replace it. VersionChanged: the
        publishers do not have that version, have different ones, or one of them writes.
        PublisherLost: all that have a part are lost. TimeoutError: a publisher does not answer.
        After an error the tensors are undefined. After Status.IN_DOUBT a peer may still write to
        one; the next pull waits for that.
        """
        begin, deadline = time.monotonic(), self._deadline(timeout)
        with self._turns.take("pull()", deadline):
            while True:
                plan = self._prepared(deadline)
                if len(plan.parts) > 1:
                    msg = f"pull() of tensors in {len(plan.parts)} parts: use pull_parts()"
                    raise InvalidArgument(Status.INVALID, msg)
                self._mover.settle(deadline)
                try:
                    lease = Lease.take(self._inquiries, _targets(plan), version, deadline)
                    with self._held(lease, deadline):
                        paths: dict[str, str] = {}
                        for part in plan.parts:
                            paths |= self._mover.start(plan, part, after, deadline)()
                    seconds = time.monotonic() - begin
                    return Pull(lease.version, plan.bytes, seconds, paths)
                except Gone as gone:
                    self._replan(gone)

    def ipull(
        self, version: int | None = None, timeout: Timeout = ..., after: After = None
    ) -> Pulling:
        """Pull in a thread of the subscriber. The result can be awaited.

        after: the GPU work to wait for. The thread does not know the caller's current stream: by
        default the pull waits for nothing.
        """
        self._turns.refuse_if_closed()
        try:
            outcome = self._background.submit(_outcome, self.pull, version, timeout, after)
        except RuntimeError:  # close() may have stopped the thread since
            self._turns.refuse_if_closed()
            raise
        return Pulling(outcome)

    def pull_parts(
        self, version: int | None = None, timeout: Timeout = ..., after: After = CURRENT_STREAM
    ) -> Generator[int, None, None]:
        """Fill the tensors of one part after the other, all with one version.

        Yields the number of each part once its tensors are filled. Meanwhile the next part is in
        flight; the one after that starts when the iterator is advanced again. So parts may
        alternate between two sets of buffers. timeout: seconds, for all parts. Errors as for
        pull(); they end the iteration, and the parts before them are undefined too: VersionChanged
        may come at the very end. A lost publisher is an error here, since yielded parts cannot be
        pulled again.

        Any thread may advance the iteration. Until it has ended, or its close() was called, other
        calls of the subscriber wait; those of the thread that advanced it last raise
        InvalidArgument. close() of the subscriber ends it.
        """
        deadline = self._deadline(timeout)
        with self._turns.take("pull_parts()", deadline) as turn:
            plan = self._prepared(deadline)
            self._mover.settle(deadline)
            try:
                turn.lease = Lease.take(self._inquiries, _targets(plan), version, deadline)
                with self._held(turn.lease, deadline):
                    yield from self._each_part(turn, plan, after, deadline)
            except Gone as gone:
                self._replan(gone)
                text = f"publisher {gone} ended during pull_parts(); the targets are undefined"
                raise PublisherLost(f"{text}: pull again, from others", gone.names) from None

    def _each_part(self, turn: Turn, plan: Plan, after: After, deadline: Deadline) -> Iterator[int]:
        parts = plan.parts
        try:
            finish = self._mover.start(plan, parts[0], after, deadline)
            for number, part in enumerate(parts):
                finish()
                if number + 1 < len(parts):
                    finish = self._mover.start(plan, parts[number + 1], after, deadline, ahead=True)
                with self._turns.paused(turn):
                    yield part
        finally:
            # The caller has stopped, or an error occurred: wait for the part in flight. Where the
            # collector ends the iteration in a thread that must not wait, the next call does.
            if may_wait():
                with contextlib.suppress(onehop.OperationError):
                    self._mover.settle(deadline)

    @contextlib.contextmanager
    def _held(self, lease: Lease, deadline: Deadline) -> Iterator[None]:
        """Confirm the lease after the block, or drop it on an error."""
        try:
            yield
            lease.confirm(deadline)
        except BaseException:
            lease.drop()
            raise

    def _replan(self, gone: Gone) -> None:
        """Continue without lost publishers. PublisherLost: the others do not have all parts."""
        self._lost.update(gone.names)
        if self._plan is not None:
            self._plan.close()
        self._plan = None
        self._assigned()

    def _deadline(self, timeout: Timeout = ...) -> Deadline:
        return Deadline(self._timeout if timeout is ... else timeout)

    # ---- The end

    def close(self) -> None:
        """Release everything, after a call of another thread has ended. May be called again.

        Such a call ends with EndpointError once its operations in flight have ended; so does an
        iteration of pull_parts() that is between two parts, when it is advanced. close() waits for
        the operations of earlier pulls, too. TimeoutError: some are still in flight after the
        timeout of the subscriber; keep the tensors, and call close() again.
        """
        deadline = self._deadline()
        self._inquiries.hub_ended()
        with self._turns.last("close()", deadline) as interrupted:
            try:
                self._mover.settle(deadline)
            except onehop.OperationError:
                msg = (
                    f"close() of subscriber {self.name!r} waited {deadline.seconds:g} s for "
                    "operations in flight: keep the tensors, which they may still write, and call "
                    "close() again"
                )
                raise OnehopTimeoutError(Status.TIMEOUT, msg) from None
            finally:
                if interrupted is not None and interrupted.lease is not None:
                    interrupted.lease.drop()
            self._forget(deadline)
            self._mover.close()
            self._background.shutdown(wait=False)
        self._hub.leave(self._inquiries.token)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Subscriber {self.name!r}: {len(self._wants)} tensors of {len(self._tables)} "
            f"publishers, {len(self._lost)} of them gone>"
        )


def _targets(plan: Plan) -> list[Target]:
    return [Target(one.publisher, one.table.token, one.link) for one in plan.sources]
