# SPDX-License-Identifier: Apache-2.0
"""The errors of onehop.weights, in addition to those of onehop."""

from __future__ import annotations

from typing import TypeVar

from onehop._core import Status
from onehop.errors import InvalidArgument, OperationError

__all__ = ["PublisherLost", "TableError", "VersionChanged", "again"]

_Failure = TypeVar("_Failure", bound=BaseException)


def again(failure: _Failure) -> _Failure:
    """Return a copy of a stored exception, to be raised.

    A stored exception that is raised itself keeps the frames of its callers, more of them each
    time.
    """
    copy = type(failure).__new__(type(failure), *failure.args)
    vars(copy).update(vars(failure))
    copy.__cause__, copy.__context__ = failure.__cause__, failure.__context__
    copy.__suppress_context__ = failure.__suppress_context__
    return copy.with_traceback(failure.__traceback__)


class VersionChanged(OperationError):
    """The publishers do not all have one readable version; the targets are undefined.

    Wait for the next version and pull again. `versions` has the answer of each publisher: the
    version that it has committed, or None while it writes or before its first commit.
    """

    def __init__(self, text: str, versions: dict[str, int | None]) -> None:
        super().__init__(Status.CANCELLED, text)
        self.versions = versions


class PublisherLost(OperationError):
    """Publishers are lost, and the others do not have all wanted parts; the targets are undefined.

    `publishers` has the names of the lost ones.
    """

    def __init__(self, text: str, publishers: list[str]) -> None:
        super().__init__(Status.NOT_VIABLE, text)
        self.publishers = publishers


class TableError(InvalidArgument):
    """The bytes are not a table of Publisher.seal, or a table of another format version."""

    def __init__(self, why: str) -> None:
        super().__init__(
            Status.INVALID,
            f"cannot read a publisher's table: {why}; pass on all of the bytes of Publisher.seal(),"
            " and run the same version of onehop on both sides",
        )
