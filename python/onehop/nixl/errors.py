# SPDX-License-Identifier: Apache-2.0
"""The exceptions of NIXL's API, and their mapping from onehop's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onehop
from onehop import Status

__all__ = [
    "nixlBackendError",
    "nixlCancelledError",
    "nixlInvalidParamError",
    "nixlMismatchError",
    "nixlNoTelemetryError",
    "nixlNotAllowedError",
    "nixlNotFoundError",
    "nixlNotPostedError",
    "nixlNotSupportedError",
    "nixlRemoteDisconnectError",
    "nixlRepostActiveError",
    "nixlUnknownError",
    "translated",
    "unless_closed",
]

# ruff: noqa: N801 - the names are NIXL's


class nixlNotPostedError(Exception):
    """The transfer was not posted yet."""


class nixlInvalidParamError(Exception):
    """An argument cannot be used."""


class nixlBackendError(Exception):
    """The transfer or the registration failed."""


class nixlNotFoundError(Exception):
    """An agent, a registration or a backend is not known."""


class nixlMismatchError(Exception):
    """The bytes do not come from an agent of this version."""


class nixlNotAllowedError(Exception):
    """The call cannot be made in this state."""


class nixlRepostActiveError(Exception):
    """The transfer is in flight."""


class nixlUnknownError(Exception):
    """Any other failure."""


class nixlNotSupportedError(Exception):
    """onehop does not offer this."""


class nixlRemoteDisconnectError(Exception):
    """The peer is gone, or its link failed: add its metadata again."""


class nixlCancelledError(Exception):
    """The transfer was cancelled."""


class nixlNoTelemetryError(Exception):
    """Telemetry is off, or the transfer was not posted."""


_BY_STATUS: dict[Status, type[Exception]] = {
    Status.INVALID: nixlInvalidParamError,
    Status.RANGE: nixlInvalidParamError,
    Status.CANCELLED: nixlCancelledError,
    Status.RETIRED: nixlNotFoundError,
    Status.NOT_VIABLE: nixlNotSupportedError,
    Status.VERSION: nixlMismatchError,
    Status.LINK: nixlRemoteDisconnectError,
    Status.PEER_LOST: nixlRemoteDisconnectError,
    Status.UNREACHABLE: nixlRemoteDisconnectError,
    Status.REFUSED: nixlRemoteDisconnectError,
}


def translate(failure: onehop.Error, tried: str) -> Exception:
    """Return NIXL's exception for an error of onehop, with its text."""
    kind = _BY_STATUS.get(failure.status)
    if kind is None:
        link = isinstance(failure, onehop.LinkError) or failure.status == Status.CLOSED
        kind = nixlRemoteDisconnectError if link else nixlBackendError
    return kind(f"{tried}: {failure}")


@contextmanager
def unless_closed() -> Iterator[None]:
    """Ignore the error of a closed endpoint: it has released everything.

    When the interpreter exits, onehop closes all endpoints before the program's finalizers release
    the rest.
    """
    try:
        yield
    except onehop.EndpointError as failure:
        if failure.status != Status.CLOSED:
            raise


@contextmanager
def translated(tried: str) -> Iterator[None]:
    """Raise errors of onehop as NIXL's; `tried` names the operation in the text."""
    try:
        yield
    except onehop.Error as failure:
        raise translate(failure, tried) from failure
