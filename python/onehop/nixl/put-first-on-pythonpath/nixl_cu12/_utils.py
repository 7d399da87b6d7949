# SPDX-License-Identifier: Apache-2.0
"""`nixl_cu12._utils`, which is onehop here: see onehop.nixl."""

from onehop.nixl.utils import *  # noqa: F403
