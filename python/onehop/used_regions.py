# SPDX-License-Identifier: Apache-2.0
"""Which of several regions a batch uses. Needs numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["used_regions"]


def used_regions(
    index: npt.NDArray[np.uint32], regions: int
) -> tuple[list[int], npt.NDArray[np.uint32]]:
    """Return the used ones of so many regions, and the index into them, which is contiguous."""
    used = np.zeros(regions, bool)
    used[index] = True
    if used.all():
        return list(range(regions)), np.ascontiguousarray(index)
    place = (np.cumsum(used) - 1).astype(np.uint32)
    return np.flatnonzero(used).tolist(), place[index]
