# SPDX-License-Identifier: Apache-2.0
"""The names of NIXL's module `_api`."""

from onehop.nixl import bindings as nixlBind  # noqa: N812
from onehop.nixl.agent import nixl_agent, nixl_agent_config
from onehop.nixl.bindings import DEFAULT_COMM_PORT, nixl_thread_sync_t
from onehop.nixl.transfers import nixl_prepped_dlist_handle, nixl_xfer_handle

nixl_backend_handle = str

__all__ = [
    "DEFAULT_COMM_PORT",
    "nixlBind",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]
