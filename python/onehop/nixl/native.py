# SPDX-License-Identifier: Apache-2.0
"""NIXL's objects below the Python agent, as far as programs make them themselves."""

from __future__ import annotations

from onehop.nixl import real
from onehop.nixl.arguments import text_of
from onehop.nixl.config import nixl_agent_config, nixlAgentConfig

# ruff: noqa: N801, N802 - the names are NIXL's

__all__ = ["OURS", "nixlAgent"]

OURS = ("UCX", "ONEHOP")


class nixlAgent:
    """How the agent below a nixl_agent is made: assign it to nixl_agent.agent.

    SGLang's HiCache does so, to choose how the agent of its storage backend is locked. onehop's
    agent is thread-safe in each mode; a real agent is made in the mode given here.
    """

    def __init__(self, name: str | bytes, config: nixlAgentConfig) -> None:
        self.name = text_of(name)
        self.config = config

    def getAvailPlugins(self) -> list[str]:
        """Return the backends of onehop, and those of the real NIXL if it is installed."""
        found = list(OURS)
        if (api := real.load()) is not None:
            agent = real.agent(api, self.name, self.wanted([]))
            found += [plugin for plugin in agent.plugin_list if plugin not in found]
        return found

    def wanted(self, backends: list[str]) -> nixl_agent_config:
        """Return its configuration in the form of the Python agent."""
        config = self.config
        return nixl_agent_config(
            enable_prog_thread=config.useProgThread,
            enable_listen_thread=config.useListenThread,
            listen_port=config.listenPort,
            capture_telemetry=config.captureTelemetry,
            backends=backends,
            sync_mode=config.syncMode,
        )
