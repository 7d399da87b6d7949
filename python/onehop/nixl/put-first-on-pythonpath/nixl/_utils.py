# SPDX-License-Identifier: Apache-2.0
"""`nixl._utils`, which is onehop here: see onehop.nixl."""

from onehop.nixl.utils import *  # noqa: F403
