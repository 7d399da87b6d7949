# SPDX-License-Identifier: Apache-2.0
"""What onehop raises: the class says what has to be rebuilt, `status` what has happened."""

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
    """The base of all; its text says what was tried, with which values, and what to do about it."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    @property
    def scope(self) -> Scope:
        """What has to be rebuilt before the work can go on."""
        return status_scope(self.status)

    def __str__(self) -> str:
        return self.text


class OperationError(Error):
    """Only this operation failed: link and endpoint are fine."""


class TimeoutError(OperationError, builtins.TimeoutError):  # noqa: A001
    """The deadline passed; the text gives the state of both sides."""


class InvalidArgument(OperationError, ValueError):
    """An argument that makes no sense: a tag, a rank, a buffer that is not contiguous."""


class InvalidType(InvalidArgument, TypeError):
    """An argument of a type that cannot be used."""


class OutOfRange(OperationError, IndexError):
    """An offset or a length outside of the memory named."""


class LinkError(Error):
    """The link to this peer is gone: connect again.

    With Endpoint.connect and Endpoint.accept, or with Communicator.reconnect.
    """


class PeerLost(LinkError):
    """The peer is gone."""


class EndpointError(Error):
    """The endpoint cannot be used: create another."""
