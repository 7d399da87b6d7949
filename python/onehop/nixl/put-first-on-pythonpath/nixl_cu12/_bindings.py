# SPDX-License-Identifier: Apache-2.0
"""`nixl_cu12._bindings`, which is onehop here: see onehop.nixl."""

from onehop.nixl.bindings import *  # noqa: F403
