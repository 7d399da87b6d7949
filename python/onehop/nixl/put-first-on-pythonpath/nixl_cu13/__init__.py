# SPDX-License-Identifier: Apache-2.0
"""`nixl_cu13`, which is onehop here: see onehop.nixl."""

from onehop.nixl.api import *  # noqa: F403
from onehop.nixl.bindings import *  # noqa: F403
