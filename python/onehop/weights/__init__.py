# SPDX-License-Identifier: Apache-2.0
"""Transfers weights from trainers to inference engines, with any sharding on both sides.

Trainer ranks publish boxes (rectangular slices) of tensors. Engines pull the boxes that they need.
A version arrives whole or not at all: see docs/integrations/weights.md. The package needs numpy
and imports no other array library.
"""

from onehop.weights.errors import PublisherLost, TableError, VersionChanged
from onehop.weights.plan import Plan
from onehop.weights.publisher import Publisher
from onehop.weights.subscriber import Published, Pull, Pulling, Subscriber

__all__ = [
    "Plan",
    "Published",
    "Publisher",
    "PublisherLost",
    "Pull",
    "Pulling",
    "Subscriber",
    "TableError",
    "VersionChanged",
]
