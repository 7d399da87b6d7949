# SPDX-License-Identifier: Apache-2.0
"""`nixl._api`, which is onehop here: see onehop.nixl."""

from onehop.nixl.api import *  # noqa: F403
