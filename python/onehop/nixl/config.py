# SPDX-License-Identifier: Apache-2.0
"""How an agent is made."""

from __future__ import annotations

from onehop.nixl.enums import nixl_thread_sync_t

# ruff: noqa: N801 - the names are NIXL's
# ruff: noqa: B006 - so are the defaults, which are never changed

__all__ = ["nixl_agent_config"]


class nixl_agent_config:
    """How an agent is made. onehop needs none of it but capture_telemetry and backends."""

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = 8888,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] = ["UCX"],
        sync_mode: nixl_thread_sync_t | None = None,
    ) -> None:
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            msg = f"sync_mode is a {type(sync_mode).__name__}: give a nixl_thread_sync_t"
            raise TypeError(msg)
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.backends = backends
        self.sync_mode = sync_mode
