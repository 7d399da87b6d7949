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
from onehop.weights.hub import never_wait
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
        # They may still write the tensors: moves of copiers, and requests not awaited to their end.
        self._moving: list[Future[str]] = []
        self._requests: set[Request] = set()

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
            self._copiers = ThreadPoolExecutor(count, "onehop-weights-copy", never_wait)
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
        for batch in source.batches[part]:
            requests.append(batch.post(after=after))
            self._requests.add(requests[-1])
        return requests

    def _finish(self, requests: list[Request], deadline: Deadline) -> str:
        paths = [request.wait(deadline.left).path for request in requests]
        self._requests.difference_update(requests)
        return paths[-1]

    def settle(self, deadline: Deadline) -> None:
        """Wait until no operation that was started writes any more. Threading: any thread.

        OperationError with Status.IN_DOUBT at the deadline.
        """
        wait(self._moving, deadline.left)
        while self._writing():
            if deadline.passed:
                msg = (
                    f"a pull of subscriber {self._name!r}: an earlier one was not waited for to "
                    "its end, and may still write the tensors"
                )
                raise OperationError(Status.IN_DOUBT, msg)
            time.sleep(0.001)

    def _writing(self) -> bool:
        """Whether an operation may still write. Forgets those that do not."""
        self._moving = [move for move in self._moving if not move.done()]
        if not self._moving:  # otherwise copiers may add requests
            released = [one for one in tuple(self._requests) if one.buffer_released]
            self._requests.difference_update(released)
        return bool(self._moving or self._requests)


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
