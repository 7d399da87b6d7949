# SPDX-License-Identifier: Apache-2.0
"""The real NIXL, for backends other than onehop's: an agent may forward all calls to it."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

from onehop.nixl import errors
from onehop.nixl.config import nixl_agent_config
from onehop.nixl.shims import FAMILIES, SHIM, loaded

__all__ = ["Forward", "agent", "load"]

_lock = threading.Lock()
_found: ModuleType | None = None


def load() -> ModuleType | None:
    """Return the module `_api` of the real NIXL, or None if it is not installed."""
    global _found
    with _lock:
        if _found is None:
            ours = {name: sys.modules.pop(name) for name in loaded()}
            path = sys.path[:]
            sys.path[:] = [entry for entry in path if entry != str(SHIM)]
            try:
                for family in FAMILIES[1:]:
                    try:
                        _found = importlib.import_module(f"{family}._api")
                        break
                    except ImportError:
                        continue
            finally:
                sys.path[:] = path
                for name in loaded():
                    del sys.modules[name]
                sys.modules.update(ours)
        return _found


def agent(api: ModuleType, name: str, config: nixl_agent_config) -> Any:  # noqa: ANN401
    """Return a real agent without backends, as the configuration says."""
    given: dict[str, Any] = {}
    if config.sync_mode is not None:  # NIXL before 1.0 has none
        given["sync_mode"] = api.nixl_thread_sync_t[config.sync_mode.name]
    made = api.nixl_agent_config(
        enable_prog_thread=config.enable_pthread,
        enable_listen_thread=config.enable_listen,
        listen_port=config.port,
        capture_telemetry=config.capture_telemetry,
        num_threads=config.num_threads,
        backends=[],
        **given,
    )
    return api.nixl_agent(name, made)


class Forward:
    """Forwards all calls to a real agent, and raises its errors as onehop.nixl's."""

    def __init__(self, agent: Any) -> None:  # noqa: ANN401
        self.agent = agent

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        found = getattr(self.agent, name)
        if not callable(found):
            return found

        def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401
            try:
                return found(*args, **kwargs)
            except Exception as failure:
                ours = getattr(errors, type(failure).__name__, None)
                if ours is None or type(failure).__module__ == errors.__name__:
                    raise
                raise ours(*failure.args) from failure

        return call
