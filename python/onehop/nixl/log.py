# SPDX-License-Identifier: Apache-2.0
"""The names of NIXL's module `logging`."""

from __future__ import annotations

import logging

__all__ = ["get_logger"]


def get_logger(name: str | None = None) -> logging.Logger:
    """Return the logger of this name; onehop's own is "onehop.nixl"."""
    return logging.getLogger(name)
