# SPDX-License-Identifier: Apache-2.0
"""What onehop.weights raises beside the errors of onehop."""

from __future__ import annotations

from onehop._core import Status
from onehop.errors import InvalidArgument, OperationError

__all__ = ["PublisherLost", "TableError", "VersionChanged"]


class VersionChanged(OperationError):
    """The publishers do not all have one version that can be read; the targets are undefined.

    Wait for the next version and pull again. `versions` has what each publisher told: the version
    that it has committed, or None while it writes or before its first commit.
    """

    def __init__(self, text: str, versions: dict[str, int | None]) -> None:
        super().__init__(Status.CANCELLED, text)
        self.versions = versions


class PublisherLost(OperationError):
    """Publishers are gone and the others do not have all that is wanted; the targets are undefined.

    `publishers` has the names of those that are gone.
    """

    def __init__(self, text: str, publishers: list[str]) -> None:
        super().__init__(Status.NOT_VIABLE, text)
        self.publishers = publishers


class TableError(InvalidArgument):
    """The bytes are no table of Publisher.seal, or not of this version."""

    def __init__(self, why: str) -> None:
        super().__init__(
            Status.INVALID,
            f"cannot read a publisher's table: {why}; pass on all of the bytes of Publisher.seal(),"
            " and run the same version of onehop on both sides",
        )
