# SPDX-License-Identifier: Apache-2.0
"""Outcomes of calls, as the differential program records them."""

import sys
import time

import numpy as np

MIB = 1 << 20
SECONDS = 30


def shape(value) -> str:
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(sorted({shape(one) for one in value}))}]"
    if isinstance(value, dict):
        keys = ", ".join(sorted({shape(one) for one in value}))
        values = ", ".join(sorted({shape(one) for one in value.values()}))
        return f"dict[{keys}: {values}]"
    return type(value).__name__


class Outcomes:
    def __init__(self):
        self.steps = {}

    def _record(self, name, call, describe):
        assert name not in self.steps, name
        value = None
        try:
            value = call()
            self.steps[name] = describe(value)
        except Exception as error:  # the outcome
            self.steps[name] = f"raises {type(error).__name__}"
        # Where a library ends the process, the last line says in which step.
        print(f"{name}: {self.steps[name]}", file=sys.stderr, flush=True)
        return value

    def exact(self, name, call):
        return self._record(name, call, repr)

    def shape(self, name, call):
        return self._record(name, call, shape)

    def counted(self, name, call):
        """A list of descriptors and their number, or None."""
        return self._record(
            name,
            call,
            lambda value: shape(value) + (f" of {value.descCount()}" if value is not None else ""),
        )

    def state(self, name, call):
        """DONE and PROC are one outcome: which of them comes first is a matter of speed."""
        return self._record(
            name, call, lambda value: "DONE or PROC" if value in ("DONE", "PROC") else repr(value)
        )


def memory(size, fill=0):
    made = np.full(size, fill, np.uint8)
    return made, made.ctypes.data


def until(what, seconds=SECONDS):
    """Calls `what` until it returns something true; None at the deadline."""
    end = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > end:
            return None
        time.sleep(0.001)
    return value
