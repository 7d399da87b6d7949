# SPDX-License-Identifier: Apache-2.0
"""Fresh weights from trainers to inference engines, of any sharding on both sides.

Trainer ranks publish boxes of tensors; engines pull the boxes that they want, each version whole or
not at all. docs/integrations/weights.md. It needs numpy, and imports no other array library.
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
