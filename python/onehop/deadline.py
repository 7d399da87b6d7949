# SPDX-License-Identifier: Apache-2.0
"""The deadline of a call that may wait."""

from __future__ import annotations

import contextlib
import threading
import time
from types import EllipsisType
from typing import TypeAlias

from onehop._core import config

__all__ = ["Deadline", "Timeout", "default_timeout"]

# Seconds; None: no limit; `...` (omitted): ONEHOP_TIMEOUT.
Timeout: TypeAlias = float | EllipsisType | None


def default_timeout() -> float:
    """Return the timeout, in seconds, of a wait whose timeout was omitted."""
    variable = next(each for each in config() if each.name == "ONEHOP_TIMEOUT")
    # An invalid value is ignored here: the library reads it next and reports it.
    with contextlib.suppress(ValueError):
        return float(variable.value or variable.default)
    return float(variable.default)


class Deadline:
    """The time by which a call must return. More seconds than a lock can wait are no limit."""

    def __init__(self, timeout: Timeout) -> None:
        self.seconds = default_timeout() if isinstance(timeout, EllipsisType) else timeout
        self._end: float | None = None
        if self.seconds is not None and self.seconds < threading.TIMEOUT_MAX:
            self._end = time.monotonic() + max(0.0, self.seconds)

    @property
    def left(self) -> float | None:
        """Return the seconds until the deadline, 0 after it, None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return self._end is not None and time.monotonic() >= self._end
