# SPDX-License-Identifier: Apache-2.0
"""Moves the bytes of a plan: threads copy host memory, copy engines copy GPU memory."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import onehop
from onehop import Request, Status
from onehop.deadline import Deadline
from onehop.devices import After
from onehop.errors import OperationError
from onehop.weights.errors import again
from onehop.weights.inquiry import Gone, gone_if_ended
from onehop.weights.plan import Plan, Source

__all__ = ["Mover"]

# Limit of the threads with which one subscriber copies host memory.
_MOST_COPIERS = 8


class Mover:
    """Moves the bytes of one subscriber. Threading: one pull at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._copiers: ThreadPoolExecutor | None = None
        # Operations whose end was not awaited, as after Ctrl-C: they may still write the tensors.
        self._moving: list[Future[str]] = []
        self._doubts: list[Request] = []

    def close(self) -> None:
        """Stop the threads."""
        if self._copiers is not None:
            self._copiers.shutdown(wait=False)

    def start(
        self, plan: Plan, part: int, after: After, deadline: Deadline, *, ahead: bool = False
    ) -> Callable[[], dict[str, str]]:
        """Begin to move a part. Return a function that waits for its end and returns the paths.

        ahead: the caller does other work meanwhile; otherwise its own thread copies too.
        """
        sources = [source for source in plan.sources if part in source.batches]
        jobs: list[Callable[[], str]] = []
        for source in sources:
            if plan.on_gpu:
                # Copy engines move the bytes: this thread posts them, in the order of its stream.
                jobs.append(self._posted(source, part, after, deadline))
            elif ahead or source is not sources[-1]:
                move = self._pool().submit(self._move, source, part, after, deadline)
                self._moving.append(move)
                jobs.append(functools.partial(_joined, move))
            else:
                jobs.append(functools.partial(self._move, source, part, after, deadline))
        return lambda: _results(sources, jobs)

    def _pool(self) -> ThreadPoolExecutor:
        """Return the threads that copy host memory. They are started on demand."""
        if self._copiers is None:
            count = min(os.cpu_count() or 1, _MOST_COPIERS)
            self._copiers = ThreadPoolExecutor(count, "onehop-weights-copy")
        return self._copiers

    def _posted(
        self, source: Source, part: int, after: After, deadline: Deadline
    ) -> Callable[[], str]:
        """Post the batches of a publisher. Return a function that waits for them, or raises."""
        try:
            requests = self._post(source, part, after)
        except onehop.Error as failure:
            return functools.partial(_fail, failure)
        return functools.partial(self._finish, requests, deadline)

    def _move(self, source: Source, part: int, after: After, deadline: Deadline) -> str:
        return self._finish(self._post(source, part, after), deadline)

    def _post(self, source: Source, part: int, after: After) -> list[Request]:
        requests: list[Request] = []
        try:
            for batch in source.batches[part]:
                requests.append(batch.post(after=after))
        except BaseException:
            self._doubts.extend(requests)
            raise
        return requests

    def _finish(self, requests: list[Request], deadline: Deadline) -> str:
        try:
            paths = [request.wait(deadline.left).path for request in requests]
        except BaseException:
            self._doubts.extend(requests)
            raise
        return paths[-1]

    def settle(self, deadline: Deadline) -> None:
        """Wait until no operation of an earlier pull writes any more.

        OperationError with Status.IN_DOUBT at the deadline.
        """
        moving = wait(self._moving, deadline.left).not_done
        self._moving = list(moving)
        while self._doubts and not moving and not deadline.passed:
            if self._doubts[-1].buffer_released:
                self._doubts.pop()
            else:
                time.sleep(0.001)
        if moving or self._doubts:
            msg = (
                f"a pull of subscriber {self._name!r}: an earlier one was not waited for to its "
                "end, and may still write the tensors"
            )
            raise OperationError(Status.IN_DOUBT, msg)


def _fail(failure: onehop.Error) -> str:
    raise again(failure)


def _joined(move: Future[str]) -> str:
    """Wait for a move of another thread. Return its path, or raise its error."""
    failure = move.exception()
    if failure is not None:
        raise again(failure)
    return move.result()


def _results(sources: Sequence[Source], jobs: Sequence[Callable[[], str]]) -> dict[str, str]:
    """Wait for all. Return the paths, or raise the first error."""
    paths: dict[str, str] = {}
    gone: list[str] = []
    failures: list[BaseException] = []
    # The last job runs on this thread; the others run concurrently.
    for source, job in zip(reversed(sources), reversed(jobs), strict=True):
        try:
            with gone_if_ended(source.publisher):
                paths[source.publisher] = job()
        except Gone as one:
            gone += one.names
        except onehop.Error as failure:
            failures.append(failure)
    if gone:
        raise Gone(gone)
    try:
        if failures:
            raise failures[0]
    finally:
        failures.clear()  # its traceback has this frame: otherwise a cycle
    return paths
