# SPDX-License-Identifier: Apache-2.0
"""The deadline of a call that may wait."""

from __future__ import annotations

import time
from types import EllipsisType
from typing import TypeAlias

from onehop.meeting import default_timeout

__all__ = ["Deadline", "Timeout"]

# Seconds; None: no limit; `...` (omitted): ONEHOP_TIMEOUT.
Timeout: TypeAlias = float | EllipsisType | None


class Deadline:
    """The time by which a call must return."""

    def __init__(self, timeout: Timeout) -> None:
        self.seconds = default_timeout() if isinstance(timeout, EllipsisType) else timeout
        self._end = None if self.seconds is None else time.monotonic() + max(0.0, self.seconds)

    @property
    def left(self) -> float | None:
        """Return the seconds until the deadline, 0 after it, None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return self._end is not None and time.monotonic() >= self._end
