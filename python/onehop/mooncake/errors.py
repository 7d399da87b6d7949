# SPDX-License-Identifier: Apache-2.0
"""The failures of calls, and their integer results."""

from __future__ import annotations

import enum

__all__ = ["Code", "Failure"]


class Code(enum.IntEnum):
    """The results of Mooncake's calls that are not 0; the binding itself uses INVALID for most."""

    INVALID = -1
    NOT_REGISTERED = -3
    OVERLAPPED = -7
    DNS = -101
    SOCKET = -102
    REJECTED = -104


class Failure(Exception):
    """A call failed: the text says what was tried and what to do, `code` is its result."""

    def __init__(self, text: str, code: Code = Code.INVALID) -> None:
        super().__init__(text)
        self.code = code
