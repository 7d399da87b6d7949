# SPDX-License-Identifier: Apache-2.0
"""The errors that onehop raises: the class states what to rebuild, `status` what happened."""

import builtins

from onehop._core import Scope, Status, status_scope

__all__ = [
    "EndpointError",
    "Error",
    "InvalidArgument",
    "InvalidType",
    "LinkError",
    "OperationError",
    "OutOfRange",
    "PeerLost",
    "TimeoutError",
]


class Error(Exception):
    """The base class. The text says what was tried, with which values, and what to do."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    @property
    def scope(self) -> Scope:
        """What to rebuild before the work can continue."""
        return status_scope(self.status)

    def __str__(self) -> str:
        return self.text


class OperationError(Error):
    """Only this operation failed; link and endpoint still work."""


class TimeoutError(OperationError, builtins.TimeoutError):  # noqa: A001
    """The deadline passed. The text gives the state of both sides."""


class InvalidArgument(OperationError, ValueError):
    """An invalid value of an argument: a tag, a rank, a buffer that is not contiguous."""


class InvalidType(InvalidArgument, TypeError):
    """An argument of an unsupported type."""


class OutOfRange(OperationError, IndexError):
    """An offset or a length outside of the given memory."""


class LinkError(Error):
    """The link to this peer is lost: connect again.

    Use Endpoint.connect and Endpoint.accept, or Communicator.reconnect.
    """


class PeerLost(LinkError):
    """The peer is lost."""


class EndpointError(Error):
    """The endpoint is unusable: create another."""
