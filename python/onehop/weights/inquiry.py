# SPDX-License-Identifier: Apache-2.0
"""A subscriber's questions to publishers, and its leases."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onehop
from onehop._core import Status
from onehop.deadline import Deadline
from onehop.errors import EndpointError
from onehop.errors import TimeoutError as OnehopTimeoutError
from onehop.weights.errors import VersionChanged
from onehop.weights.hub import Kind, Link, Message
from onehop.weights.leases import ANY, NONE

__all__ = ["Gone", "Inquiries", "Lease", "Target", "gone_if_ended"]


class Gone(Exception):
    """Publishers have ended."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(set(names))
        super().__init__(", ".join(self.names))


@contextlib.contextmanager
def gone_if_ended(publisher: str) -> Iterator[None]:
    """Raise Gone if an operation failed because the publisher has ended."""
    try:
        yield
    except onehop.LinkError:
        raise Gone([publisher]) from None
    except onehop.OperationError as failure:
        if failure.status != Status.RETIRED:
            raise
        raise Gone([publisher]) from None


@dataclass(frozen=True)
class Target:
    """A publisher, and the link to it."""

    name: str
    token: int
    link: Link


@dataclass
class _Question:
    target: Target
    answer: Message | None = None
    # The hub says so after the answers that arrived over the link; the state of the link would say
    # it before.
    lost: bool = False

    @property
    def over(self) -> bool:
        return self.answer is not None or self.lost

    @property
    def gone(self) -> bool:
        return self.answer.kind == Kind.GONE if self.answer is not None else self.lost


class Inquiries:
    """Questions in flight: a Handler of a hub. Threading: any thread."""

    def __init__(self, name: str, token: int) -> None:
        self.name = name
        self.token = token
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._asked: dict[int, _Question] = {}
        self._ended = False

    def ask(self, target: Target, kind: Kind, value: int) -> int:
        """Send a question; return its number, for answers()."""
        number = next(self._numbers)
        question = _Question(target)
        with self._changed:
            self._asked[number] = question
        self._send(question, kind, number, value, self.name)
        return number

    def go_on(self, target: Target, kind: Kind, number: int) -> None:
        """Send a message about an earlier question, and expect another answer to it."""
        question = _Question(target)
        with self._changed:
            self._asked[number] = question
        self._send(question, kind, number, 0, "")

    def _send(self, question: _Question, kind: Kind, number: int, value: int, text: str) -> None:
        target = question.target
        message = Message(kind, target.token, self.token, number, value, text)
        try:
            target.link.send(message)
        except onehop.LinkError:
            question.lost = True
        except OnehopTimeoutError:
            pass  # the publisher is stopped and will not answer

    def drop(self, target: Target, number: int) -> None:
        """Tell a publisher that a question, or the lease that it granted, has ended."""
        with self._changed:
            self._asked.pop(number, None)
        with contextlib.suppress(onehop.Error):
            target.link.send(Message(Kind.DROP, target.token, self.token, number))

    def answers(self, numbers: Sequence[int], deadline: Deadline, what: str) -> list[Message]:
        """Wait for the answers to these questions, in their order.

        Gone names the publishers that have ended, TimeoutError those that do not answer.
        """
        with self._changed:
            questions = [self._asked[number] for number in numbers]
            while not all(one.over for one in questions) and not self._ended:
                if deadline.passed:
                    break
                self._changed.wait(deadline.left)
            for number in numbers:
                self._asked.pop(number, None)
            if self._ended:
                msg = f"{what}: subscriber {self.name!r} or its endpoint was closed"
                raise EndpointError(Status.CLOSED, msg)
        if gone := [one.target.name for one in questions if one.gone]:
            raise Gone(gone)
        if silent := [one.target.name for one in questions if one.answer is None]:
            names = ", ".join(map(repr, sorted(silent)))
            msg = (
                f"{what} of subscriber {self.name!r} waited {deadline.seconds:g} s for publisher "
                f"{names}, whose process is alive: is it stopped, or does it never commit?"
            )
            raise OnehopTimeoutError(Status.TIMEOUT, msg)
        return [one.answer for one in questions if one.answer is not None]

    # ---- The hub's calls

    def received(self, link: Link, message: Message) -> None:
        """Receive an answer."""
        late: _Question | None = None
        with self._changed:
            question = self._asked.get(message.request)
            if question is not None and question.target.link is link:
                question.answer = message
                self._changed.notify_all()
            elif message.kind == Kind.GRANT:
                late = _Question(Target("", message.sender, link))
        if late is not None:  # the subscriber has given up on this lease
            self.drop(late.target, message.request)

    def link_ended(self, link: Link) -> None:
        """End the questions to a lost publisher."""
        with self._changed:
            for question in list(self._asked.values()):
                question.lost |= question.target.link is link
            self._changed.notify_all()

    def hub_ended(self) -> None:
        """End all questions: the subscriber or its endpoint was closed."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


@dataclass
class Lease:
    """A lease of one version at several publishers: none of them writes while it is held."""

    inquiries: Inquiries
    version: int
    held: list[tuple[Target, int]] = field(default_factory=list)

    @classmethod
    def take(
        cls,
        inquiries: Inquiries,
        targets: Sequence[Target],
        version: int | None,
        deadline: Deadline,
    ) -> Lease:
        """Return a lease of one version at all targets.

        VersionChanged: not all of them have it. Gone. TimeoutError.
        """
        wanted = ANY if version is None else version
        lease = cls(inquiries, NONE)
        try:
            for one in targets:
                lease.held.append((one, inquiries.ask(one, Kind.LEASE, wanted)))
            numbers = [number for _, number in lease.held]
            answers = inquiries.answers(numbers, deadline, "a pull")
        except BaseException:
            lease.drop()
            raise
        versions = {
            one.name: None if answer.value == NONE else answer.value
            for one, answer in zip(targets, answers, strict=True)
        }
        granted = all(answer.kind == Kind.GRANT for answer in answers)
        found = set(versions.values())
        if granted and len(found) == 1:
            lease.version = answers[0].value
            return lease
        lease.drop()
        raise _changed(versions, version)

    def confirm(self, deadline: Deadline) -> None:
        """Return the lease, after all bytes were read.

        VersionChanged: the lease had ended before, so the bytes may be of another version. Gone.
        TimeoutError.
        """
        for target, number in self.held:
            self.inquiries.go_on(target, Kind.CONFIRM, number)
        numbers = [number for _, number in self.held]
        answers = self.inquiries.answers(numbers, deadline, "the end of a pull")
        ended = [
            target.name
            for (target, _), answer in zip(self.held, answers, strict=True)
            if answer.kind != Kind.RELEASED or not answer.value
        ]
        if ended:
            msg = (
                f"the lease of version {self.version} was taken away by publisher "
                f"{', '.join(map(repr, ended))} while the pull was under way; the targets are "
                "undefined: pull again"
            )
            raise VersionChanged(msg, dict.fromkeys(ended))

    def drop(self) -> None:
        """Return the lease after a failure, without waiting for an answer. May be called again."""
        held, self.held = self.held, []
        for target, number in held:
            self.inquiries.drop(target, number)


def _changed(versions: dict[str, int | None], wanted: int | None) -> VersionChanged:
    told = ", ".join(
        f"{name!r} {'has none that can be read now' if one is None else f'has {one}'}"
        for name, one in sorted(versions.items())
    )
    what = "the publishers do not agree" if wanted is None else f"version {wanted} is not there"
    return VersionChanged(
        f"{what}: {told}; the targets are undefined: wait_version(), then pull again", versions
    )
