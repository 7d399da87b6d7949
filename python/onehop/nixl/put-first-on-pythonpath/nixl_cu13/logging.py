# SPDX-License-Identifier: Apache-2.0
"""`nixl_cu13.logging`, which is onehop here: see onehop.nixl."""

from onehop.nixl.log import *  # noqa: F403
