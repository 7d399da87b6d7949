# SPDX-License-Identifier: Apache-2.0
"""Lives: how the ranks of a group find each other in a store that earlier groups may have used."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

__all__ = ["Life"]

# Keys of the store. Only rank 0 counts lives.
_LIVES = "onehop_lives"
_LIFE = "onehop_life_{}"
# Keys of one life.
_SIZE = "size"
_READERS = "readers"
_OVER = "over"
_DISAGREEMENT = "disagreement"


class Life:
    """The part of a store that one group uses, over the communicators its ranks create in turn.

    Rank 0 begins a life; the others join the first one that is not over. A life is over once all
    ranks have joined, or rank 0 has given up.
    """

    def __init__(self, store: Any, rank: int, size: int, seconds: float) -> None:  # noqa: ANN401
        """Begin a life, or wait up to `seconds` for rank 0 to begin it.

        DistBackendError: rank 0 did not begin one. ValueError: rank 0 was given another size.
        """
        self._rank = rank
        self._size = size
        number = max(1, int(store.add(_LIVES, 1 if rank == 0 else 0)))
        self.store = dist.PrefixStore(_LIFE.format(number), store)
        if rank == 0:
            self.store.set(_SIZE, str(size))
            return
        if self.store.check([_OVER]):
            self.store = dist.PrefixStore(_LIFE.format(number + 1), store)
        self._join(seconds)

    def _join(self, seconds: float) -> None:
        """Compare this rank's size with rank 0's, and count this rank as joined."""
        rank, size = self._rank, self._size
        try:
            self.store.wait([_SIZE], timedelta(seconds=seconds))
        except Exception as failure:
            raise dist.DistBackendError(
                f"onehop: rank {rank} of {size} looked for rank 0 in the store for at most"
                f" {seconds:g} s: {failure}. Are all ranks running?"
            ) from failure
        theirs = int(self.store.get(_SIZE))
        if theirs != size:
            text = (
                f"onehop: rank {rank} was given world_size {size}, rank 0 {theirs}:"
                " give all ranks the same"
            )
            self.store.set(_DISAGREEMENT, text)
            raise ValueError(text)
        # A rank that joins again after an error counts once.
        if self.store.add(f"rank_{rank}", 1) == 1 and self.store.add(_READERS, 1) == size - 1:
            self.store.set(_OVER, "")

    def give_up(self) -> None:
        """On rank 0: end the life that not all ranks have joined."""
        if self._rank == 0:
            self.store.set(_OVER, "")

    @property
    def disagreement(self) -> str | None:
        """The message of a rank whose size differs, or None."""
        if not self.store.check([_DISAGREEMENT]):
            return None
        text: str = self.store.get(_DISAGREEMENT).decode()
        return text
