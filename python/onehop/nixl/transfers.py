# SPDX-License-Identifier: Apache-2.0
"""Prepared lists and transfers: the objects behind the handles of NIXL's API."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import onehop
from onehop import PreparedBatch, RemoteRegion, Request, Status
from onehop.nixl.enums import nixlXferTelemetry
from onehop.nixl.errors import (
    nixlBackendError,
    nixlCancelledError,
    nixlInvalidParamError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlRepostActiveError,
    translate,
    translated,
)
from onehop.nixl.inbox import NOTE
from onehop.nixl.memory import HOST, Memory, Registration
from onehop.nixl.metadata import RegionRecord
from onehop.nixl.places import Numbers, Places, distinct, paired
from onehop.nixl.remote import Link, RemoteAgent
from onehop.used_regions import used_regions

if TYPE_CHECKING:
    from onehop.nixl.core import Core

# ruff: noqa: N801 - the names are NIXL's

__all__ = ["Transfer", "nixl_prepped_dlist_handle", "nixl_xfer_handle"]

# Limit of blocks in one batch, and in a transfer whose lists stay strided.
_MOST_BLOCKS = 1 << 20
# Copies by this process run on another thread from this size on: for fewer bytes, waking the thread
# takes as long as the copy.
_BACKGROUND = 512 << 10
# Seconds for which a release waits for a transfer that cannot be cancelled.
_RELEASE_WAIT = 1.0


@dataclass(frozen=True)
class Local:
    """A prepared list of local blocks."""

    places: Places[Registration]


@dataclass(frozen=True)
class Remote:
    """A prepared list of another agent's blocks."""

    places: Places[RegionRecord]
    agent: RemoteAgent


class _Handle:
    """Shared by both kinds of handles."""

    __slots__ = ("__weakref__", "_core", "_released")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._released = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({id(self):#x}, released={self._released})"

    def check(self, core: Core) -> None:
        """Raise if it was released, or belongs to another agent."""
        if self._released:
            msg = f"{self!r} was released: make another"
            raise nixlInvalidParamError(msg)
        if core is not self._core:
            msg = f"{self!r} is of agent {self._core.name!r}, not of {core.name!r}"
            raise nixlInvalidParamError(msg)


class nixl_prepped_dlist_handle(_Handle):
    """A prepared list of descriptors. Create it with nixl_agent.prep_xfer_dlist."""

    __slots__ = ("side",)

    def __init__(self, core: Core, side: Local | Remote) -> None:
        super().__init__(core)
        self.side: Local | Remote | None = side

    def release(self) -> None:
        """Release the list; transfers made from it stay valid. May be called again."""
        self._released = True
        self.side = None


class nixl_xfer_handle(_Handle):
    """A transfer. Create it with nixl_agent.make_prepped_xfer or initialize_xfer."""

    __slots__ = ("transfer",)

    def __init__(self, core: Core, transfer: Transfer) -> None:
        super().__init__(core)
        self.transfer = transfer

    def release(self) -> None:
        """End and release the transfer: when it returns nothing accesses the buffers.

        nixlRepostActiveError: it is in flight, cannot be cancelled and did not end within a second;
        the handle stays. May be called again.
        """
        if not self._released:
            self.transfer.release()
            self._released = True

    def __del__(self) -> None:
        # Never raises; the agent keeps a transfer in flight until it has ended.
        with contextlib.suppress(Exception):
            if not self._released:
                self.transfer.abandon()


class _Part:
    """The blocks of a transfer that use one link."""

    def __init__(self, link: Link, batch: PreparedBatch) -> None:
        self.link = link
        self.batch = batch


class Transfer:
    """A set of blocks, moved by each post, and the state of the last post.

    Threading: any thread.
    """

    def __init__(
        self,
        core: Core,
        put: bool,
        local: Local,
        remote: Remote,
        numbers: tuple[Numbers, Numbers] | None,
        notify: bytes | None,
    ) -> None:
        """Create a transfer of the blocks with these indices; None: all. prepare() comes next."""
        here, there = paired(local.places, remote.places, numbers, _MOST_BLOCKS)
        _check_blocks(here, there)
        local, remote = replace(local, places=here), replace(remote, places=there)
        self.core = core
        self.agent = remote.agent
        self.notify = notify
        self._lock = threading.RLock()
        self._posted: list[Request] = []
        self._begun: list[float] = []  # time of each post
        self._pending: list[Request] = []
        self._note: bytes | None = None  # sent after all parts have ended
        self._state = "INIT"  # then PROC, DONE or ERR
        self._queued = False  # in PROC: it waits for its turn with the other agent
        self._failure: Exception | None = None
        self._unmade: Exception | None = None  # why it could not be prepared
        self._given_up = False
        self._start = self._posting = self._end = 0.0
        self._started_at = 0
        self.bytes, self.blocks = local.places.bytes, local.places.blocks
        self.registrations = _used(local.places)
        self._sides: tuple[bool, Places[Registration], Remote] | None = put, local.places, remote
        self._parts: list[_Part] = []

    def prepare(self, wait: bool = True) -> None:
        """Reach the memory of the other agent. NotYet: that would wait for it, and wait is False.

        Posts before its end are queued behind it in RemoteAgent.calls.
        """
        if self._given_up:
            return
        assert self._sides is not None
        parts = list(_parts(self.core.memory, *self._sides, wait))
        with self._lock:
            self._sides = None  # the batches have what they need of it
            if self._given_up:
                for part in parts:
                    part.batch.close()
            else:
                self._parts = parts

    def unprepared(self, failure: Exception) -> None:
        """Take why it could not be prepared: posts raise it."""
        self._unmade = _unraised(failure)

    # ---- Calls

    def post(self, notify: bytes | None) -> str:
        """Move the blocks once."""
        with self._lock:
            if self._state == "PROC" and self._advance() == "PROC":
                msg = f"post a transfer of {self.blocks} blocks that is in flight: wait for its end"
                raise nixlRepostActiveError(msg)
            if any(not posted.buffer_released for posted in self._posted):
                msg = "post a transfer that failed while its peer may still touch the buffers"
                raise nixlRepostActiveError(msg)
            # Active before the check: Core.deregister() marks the registrations, then stops what is
            # active. So either the check sees the mark, or this transfer is stopped.
            self.core.active[id(self)] = self
            try:
                self._check_usable()
            except BaseException:
                self.core.active.pop(id(self), None)
                raise
            if notify is not None:
                self.notify = notify
            self._failure = None
            self._posted, self._begun, self._pending = [], [], []
            self._started_at = time.time_ns() // 1000
            self._start = time.perf_counter()
            self._state, self._queued = "PROC", True
            self.agent.calls.run(self._post_in_turn, self._failed_in_turn)
            return self._state

    def _check_usable(self) -> None:
        """Raise why it cannot be posted."""
        if self._unmade is not None:
            raise _unraised(self._unmade)
        self.agent.check()
        for registration in self.registrations:
            if not registration.live:
                msg = (
                    f"{registration.size} bytes at {registration.address:#x} were deregistered "
                    "here since the transfer was made"
                )
                raise nixlNotFoundError(msg)

    def _post_in_turn(self, later: bool) -> None:
        """Post it, now that nothing is before it. later: post() has returned meanwhile."""
        with self._lock:
            if not self._queued or self._given_up:
                return
            if later:
                self._check_usable()
            self._queued = False
            self._post()
        if self._given_up:  # by abandon(), which takes no lock
            self.abandon()

    def _failed_in_turn(self, failure: Exception) -> None:
        with self._lock:
            if self._queued:
                self._queued, self._state, self._failure = False, "ERR", _unraised(failure)
                self._end = time.perf_counter()
            if self.quiet:
                self.core.active.pop(id(self), None)

    def _post(self) -> None:
        self._note = None if self.notify is None else NOTE + self.notify
        began = time.perf_counter()
        inside = None
        if len(self._parts) == 1:
            inside, self._note = self._note, None
        try:
            for part in self._parts:
                self._begun.append(time.perf_counter())
                later = self.bytes >= _BACKGROUND
                self._posted.append(part.batch.post(inside, after=None, background=later))
        except Exception as failure:
            for posted in self._posted:
                posted.cancel()
            if isinstance(failure, onehop.Error):
                self._failure = self._translate(failure)
            else:
                self._failure = _unraised(failure)
        self._posting = time.perf_counter() - began
        self._pending = list(self._posted)
        # Testing a request makes progress, which would copy a part here.
        ended = all(posted.buffer_released for posted in self._posted)
        if (ended or self._failure is not None) and self._advance() == "ERR":
            assert self._failure is not None
            raise _unraised(self._failure)

    def check(self) -> str:
        """Return "DONE" or "PROC"; raises what the transfer failed with."""
        with self._lock:
            if self._state == "INIT":
                msg = f"check a transfer of {self.blocks} blocks that was not posted: transfer() it"
                raise nixlNotPostedError(msg)
            if self._state == "PROC":
                self._advance()
            if self._state == "ERR":
                assert self._failure is not None
                raise _unraised(self._failure)
            return self._state

    def wait(self, timeout: float) -> None:
        """Wait for the end of the last post; raises its failure.

        After `timeout` seconds the transfer is ended: nixlBackendError.
        """
        # Without the lock, so that stop() can run; the failure is raised below.
        with contextlib.suppress(onehop.Error):
            onehop.wait_all(list(self._pending), timeout=timeout)
        if self.check() != "DONE":
            msg = f"{self._what()}: it has not ended after {timeout:g} s"
            raise nixlBackendError(msg)

    def telemetry(self, requested: str) -> nixlXferTelemetry:
        """Return the telemetry of the last post."""
        with self._lock:
            if self._state == "PROC":
                self._advance()
            if self._state != "DONE":
                msg = "telemetry of a transfer that has not ended well: check its state first"
                raise nixlNoTelemetryError(msg)
            return nixlXferTelemetry(
                self._started_at,
                round(self._posting * 1e6),
                round((self._end - self._start) * 1e6),
                self.bytes,
                self.blocks,
                "+".join(sorted({posted.message.path for posted in self._posted})),
                requested,
            )

    def release(self) -> None:
        """End it and release everything it holds."""
        with self._lock:
            self._stop(_RELEASE_WAIT)
            self._given_up = True
            for part in self._parts:
                part.batch.close()
            self._parts = []

    def stop(self) -> None:
        """End it, since its memory is being deregistered; raises as release() does."""
        with self._lock:
            self._stop(_RELEASE_WAIT)

    def abandon(self) -> None:
        """Cancel it; the agent keeps a transfer that cannot be cancelled. Takes no lock."""
        self._given_up = True
        for posted in self._pending:
            posted.cancel()
        if id(self) in self.core.active:
            self.core.orphans.append(self)

    @property
    def quiet(self) -> bool:
        """Whether its buffers are unused; makes progress."""
        with self._lock:
            return all(posted.done and posted.buffer_released for posted in self._posted)

    # ---- Progress

    def _what(self) -> str:
        return f"transfer {self.blocks} blocks, {self.bytes} bytes, with agent {self.agent.name!r}"

    def _translate(self, failure: onehop.Error) -> Exception:
        made = translate(failure, self._what())
        made.__cause__ = failure.with_traceback(None)
        return made

    def _advance(self) -> str:
        if self._queued:
            return self._state
        self._pending = [posted for posted in self._pending if not posted.done]
        if self._pending:
            return self._state
        failures = (_failure(posted) for posted in self._posted)
        failure = next((one for one in failures if one is not None), None)
        if failure is not None and self._failure is None:
            self._failure = self._translate(failure)
        self._end = time.perf_counter()
        if self._failure is None:
            if self._note is None:
                ends = map(self._end_of, self._posted, self._begun)
                self._end = max(self._start + self._posting, *ends)
            elif not self._send_note():
                return self._state
        self._state = "DONE" if self._failure is None else "ERR"
        if self.quiet:
            self.core.active.pop(id(self), None)
        return self._state

    def _end_of(self, posted: Request, begun: float) -> float:
        """Return when a part ended, which may be long before the check that sees it."""
        took = posted.message.seconds
        return begun + took if took else self._end

    def _send_note(self) -> bool:
        """Send the notification of a transfer over several links, after all parts have ended."""
        assert self._note is not None
        try:
            if not self._parts[0].link.outbox.try_send(self._note):
                return False
        except onehop.Error as failure:
            self._failure = self._translate(failure)
        self._note = None
        return True

    def _stop(self, seconds: float) -> None:
        if self._state == "INIT":
            return
        if self._queued:
            self._queued = False
            self._failure = nixlCancelledError(f"{self._what()}: it was ended before it began")
        for posted in self._pending:
            posted.cancel()
        until = time.monotonic() + seconds
        while not self.quiet:
            left = until - time.monotonic()
            if left <= 0:
                msg = (
                    f"release the {self._what()}: it is in flight and cannot be cancelled, as the "
                    "peer may still touch the buffers; call again later"
                )
                raise nixlRepostActiveError(msg)
            with contextlib.suppress(onehop.Error):
                onehop.wait_all(self._posted, timeout=min(left, 0.05))
            if not self.quiet:
                time.sleep(0.001)
        if self._state == "PROC":
            self._pending = []
            self._note = None
            self._advance()
        self.core.active.pop(id(self), None)


def _used(places: Places[Registration]) -> list[Registration]:
    numbers, _ = used_regions(places.index, len(places.regions))
    return [places.regions[number] for number in numbers]


def _check_blocks(local: Places[Registration], remote: Places[RegionRecord]) -> None:
    if len(local.index) != len(remote.index):
        msg = f"{local.blocks} local and {remote.blocks} remote blocks: give as many"
        raise nixlInvalidParamError(msg)
    differ = local.length != remote.length
    if differ.any():
        row = int(np.flatnonzero(differ)[0])
        msg = (
            f"block {row} has {int(local.length[row])} bytes here and {int(remote.length[row])} "
            "at the remote side: give blocks of the same length"
        )
        raise nixlInvalidParamError(msg)


def _unraised(failure: Exception) -> Exception:
    """Return a copy with the same cause: a transfer keeps one, and raises a new one each time.

    An exception that is raised refers to its frames, which refer to the transfer; each time adds
    more of them.
    """
    made = type(failure)(*failure.args)
    if failure.__cause__ is not None:
        made.__cause__ = failure.__cause__.with_traceback(None)
    return made


def _failure(request: Request) -> onehop.Error | None:
    """Return the failure of a request that has ended."""
    if request.status in (Status.OK, Status.IN_PROGRESS):
        return None
    try:
        request.test()
    except onehop.Error as failure:
        return failure.with_traceback(None)
    return None


def _parts(
    memory: Memory,
    put: bool,
    local: Places[Registration],
    remote: Remote,
    wait: bool,
) -> Iterator[_Part]:
    """Divide the blocks by link, and prepare a batch for each."""
    agent, there = remote.agent, remote.places
    filled = local.length != 0
    if not filled.all():
        rows = np.flatnonzero(filled)
        local, there = local.rows(rows), there.rows(rows)
    # The endpoint of each region, and so of each block.
    owners = np.array([region.owner.number for region in local.regions], np.uint32)
    targets = np.array([region.endpoint for region in there.regions], np.uint32)
    owner, target = owners[local.index], targets[there.index]
    if len(owner) == 0:  # only blocks of 0 bytes
        link = agent.control(memory.endpoint_on(HOST), wait)
        yield _Part(link, link.peer.prepare_put_regions([], [], None, [], None, [], []))
        return
    same_link = (owner == owner[0]).all() and (target == target[0]).all()
    if same_link and len(owner) <= _MOST_BLOCKS:
        yield _part(agent, put, local, there, wait)
        return
    pair = owner.astype(np.uint64) << np.uint64(32) | target
    for one in distinct(pair):
        rows = np.flatnonzero(pair == one)
        for first in range(0, len(rows), _MOST_BLOCKS):
            some = rows[first : first + _MOST_BLOCKS]
            yield _part(agent, put, local.rows(some), there.rows(some), wait)


def _part(
    agent: RemoteAgent,
    put: bool,
    local: Places[Registration],
    there: Places[RegionRecord],
    wait: bool,
) -> _Part:
    # All blocks of a part have the same two endpoints, and so the same kinds of memory.
    ours, theirs = local.regions[int(local.index[0])], there.regions[int(there.index[0])]
    link = agent.link(ours.owner, theirs.endpoint, wait)
    local_numbers, local_index = used_regions(local.index, len(local.regions))
    remote_numbers, remote_index = used_regions(there.index, len(there.regions))
    locals_ = []
    for number in local_numbers:
        region = local.regions[number].region
        assert region is not None  # its blocks are not empty
        locals_.append(region)
    remotes: list[RemoteRegion] = [
        agent.attach(link, there.regions[number], wait) for number in remote_numbers
    ]
    prepare = link.peer.prepare_put_regions if put else link.peer.prepare_get_regions
    with translated(f"prepare {local.blocks} blocks with agent {agent.name!r}"):
        batch = prepare(
            locals_,
            remotes,
            local_index,
            local.offset,
            remote_index,
            there.offset,
            local.length,
            local.counts,
            local.strides,
            there.strides,
        )
    agent.tell_path(link, ours.memory, theirs.memory)
    return _Part(link, batch)


def sweep(orphans: deque[Transfer]) -> None:
    """Release abandoned transfers that have ended."""
    for _ in range(len(orphans)):
        try:
            transfer = orphans.popleft()
        except IndexError:
            return
        if transfer.quiet:
            transfer.core.active.pop(id(transfer), None)
        else:
            orphans.append(transfer)
