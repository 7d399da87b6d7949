# SPDX-License-Identifier: Apache-2.0
"""`nixl.logging`, which is onehop here: see onehop.nixl."""

from onehop.nixl.log import *  # noqa: F403
