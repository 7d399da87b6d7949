# SPDX-License-Identifier: Apache-2.0
"""`mooncake.engine`, which is onehop here: see onehop.mooncake."""

from onehop.mooncake.engine import TransferEngine, TransferOpcode

__all__ = ["TransferEngine", "TransferOpcode"]
