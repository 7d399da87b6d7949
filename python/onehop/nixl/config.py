# SPDX-License-Identifier: Apache-2.0
"""How an agent is made, in the two forms of NIXL's API."""

from __future__ import annotations

from onehop.nixl.enums import DEFAULT_COMM_PORT, nixl_thread_sync_t

# ruff: noqa: N801, N803 - the names are NIXL's
# ruff: noqa: B006 - so are the defaults, which are never changed

__all__ = ["nixlAgentConfig", "nixl_agent_config"]


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


class nixlAgentConfig:
    """The form of the module `_bindings`. Only a real agent needs it: see nixl_agent.agent."""

    def __init__(
        self,
        useProgThread: bool = False,
        useListenThread: bool = False,
        listenPort: int = DEFAULT_COMM_PORT,
        syncMode: nixl_thread_sync_t = nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT,
        _workers: int = 1,
        pthrDelay: int = 0,
        lthrDelay: int = 100_000,
        captureTelemetry: bool = False,
    ) -> None:
        self.useProgThread = useProgThread
        self.useListenThread = useListenThread
        self.listenPort = listenPort
        self.syncMode = syncMode
        self.pthrDelay = pthrDelay
        self.lthrDelay = lthrDelay
        self.captureTelemetry = captureTelemetry
        self.etcdWatchTimeout = 5_000_000
