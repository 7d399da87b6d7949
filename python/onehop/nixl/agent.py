# SPDX-License-Identifier: Apache-2.0
"""NIXL's agent on onehop: the calls, their arguments and their exceptions."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import Any

import onehop
from onehop.nixl import real
from onehop.nixl.arguments import bytes_of, indices_of, text_of
from onehop.nixl.config import nixl_agent_config
from onehop.nixl.core import Core
from onehop.nixl.descriptors import DescriptorCalls
from onehop.nixl.descs import nixlRegDList, nixlXferDList
from onehop.nixl.enums import nixl_mem_t, nixl_xfer_op_t, nixlXferTelemetry
from onehop.nixl.errors import (
    nixlInvalidParamError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotSupportedError,
)
from onehop.nixl.memory import HOST
from onehop.nixl.native import OURS as _OURS
from onehop.nixl.native import nixlAgent
from onehop.nixl.places import Numbers
from onehop.nixl.transfers import (
    Local,
    Remote,
    Transfer,
    nixl_prepped_dlist_handle,
    nixl_xfer_handle,
)

# ruff: noqa: N801, N803 - the names are NIXL's
# ruff: noqa: B006 - so are the defaults, which are never changed

__all__ = ["Explanation", "nixl_agent", "nixl_agent_config"]

_log = logging.getLogger("onehop.nixl")

_MEMORIES = ["DRAM_SEG", "VRAM_SEG"]
_SELF = "NIXL_INIT_AGENT"


@dataclass(frozen=True)
class Explanation:
    """What goes to another agent by which path, and why. Prints as text."""

    agent: str
    links: list[tuple[str, str, str, onehop.Paths]] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.links:
            return f"agent {self.agent!r}: not connected yet; the first transfer connects"
        return "\n\n".join(
            f"agent {self.agent!r}: {here} here, {there} of {label}\n{paths}"
            for here, there, label, paths in self.links
        )


class nixl_agent(DescriptorCalls):
    """An agent: registers memory, knows other agents, and moves bytes between theirs and its own.

    Threading: any thread may make any call; waiting releases the GIL.
    """

    def __init__(
        self,
        agent_name: str | bytes,
        nixl_conf: nixl_agent_config | None = None,
        instantiate_all: bool = False,
    ) -> None:
        config = nixl_conf or nixl_agent_config()
        self.name = text_of(agent_name)
        self._core = Core(self.name)
        self._real: real.Forward | None = None
        self._below: nixlAgent | None = None
        self._config = config
        self._telemetry = config.capture_telemetry or _asked_for_telemetry()
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, str] = {}
        self.backend_mems: dict[str, list[str]] = {}
        self.plugin_list = list(_OURS)
        self.nixl_mems = {
            "DRAM": nixl_mem_t.DRAM_SEG,
            "VRAM": nixl_mem_t.VRAM_SEG,
            "FILE": nixl_mem_t.FILE_SEG,
            "BLOCK": nixl_mem_t.BLK_SEG,
            "OBJ": nixl_mem_t.OBJ_SEG,
            "cpu": nixl_mem_t.DRAM_SEG,
            "cuda": nixl_mem_t.VRAM_SEG,
        }
        self.nixl_ops = {
            "WRITE": nixl_xfer_op_t.NIXL_WRITE,
            "READ": nixl_xfer_op_t.NIXL_READ,
        }
        wanted = _OURS if instantiate_all else config.backends
        for backend in wanted:
            if backend in _OURS:
                self._enable(backend)
            elif set(_OURS).isdisjoint(wanted):
                self.create_backend(backend)
            else:
                _log.warning("agent %r: onehop has no backend %r", self.name, backend)

    # ---- Backends

    @property
    def agent(self) -> Any:  # noqa: ANN401
        """The object behind this one. A nixlAgent that is assigned says how a real one is made."""
        return self._real or self._below or self._core

    @agent.setter
    def agent(self, given: nixlAgent) -> None:
        if not isinstance(given, nixlAgent):
            msg = f"agent is a {type(given).__name__}: give a nixlAgent of the module _bindings"
            raise nixlInvalidParamError(msg)
        self._below, self._config = given, given.wanted(self._config.backends)

    @property
    def backend_options(self) -> dict[str, dict[str, str]]:
        """The parameters of the backends that were created."""
        return {backend: self.get_backend_params(backend) for backend in self.backends}

    def _enable(self, backend: str) -> None:
        self.backends[backend] = backend
        self.backend_mems[backend] = list(_MEMORIES)

    def create_backend(self, backend: str, initParams: dict[str, str] = {}) -> None:
        """Create a backend; "UCX" and "ONEHOP" both mean onehop, whose parameters are ignored.

        Any other is the real NIXL's, if that is installed and nothing is registered here yet: all
        calls of this agent go there from then on. Else nixlNotFoundError.
        """
        if backend in self.backends:
            msg = f"backend {backend!r} of agent {self.name!r} is there already"
            raise nixlInvalidParamError(msg)
        if self._real is None and backend in _OURS:
            self._enable(backend)
            return
        found = self._real or self._real_agent(backend)
        found.create_backend(backend, initParams)  # raises: this agent stays ours
        self._real = found
        self.backends, self.backend_mems = found.backends, found.backend_mems
        self.plugin_list = found.plugin_list

    def _real_agent(self, backend: str) -> real.Forward:
        tried = f"create backend {backend!r} of agent {self.name!r}: onehop has "
        tried += " and ".join(map(repr, _OURS))
        if not self._core.memory.empty:
            msg = f"{tried}, and memory is registered: create it on an agent of its own"
            raise nixlNotFoundError(msg)
        api = real.load()
        if api is None:
            msg = f"{tried}, and the real NIXL is not installed"
            raise nixlNotFoundError(msg)
        agent = real.Forward(real.agent(api, self.name, self._config))
        _log.info("agent %r is the real NIXL's, for its backend %r", self.name, backend)
        return agent

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        """Give the real agent's method once there is one."""
        get = object.__getattribute__
        if name in _FORWARDED and (forward := get(self, "__dict__").get("_real")) is not None:
            return getattr(forward, name)
        return get(self, name)

    def get_plugin_list(self) -> list[str]:
        """Return the names of the backends."""
        return list(self.plugin_list)

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """Return the kinds of memory of a backend that could be created."""
        return list(_MEMORIES) if backend in _OURS else []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """Return the parameters of a backend that could be created: onehop has none."""
        return {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """Return the kinds of memory of a backend that was created."""
        return list(self.backend_mems.get(backend, []))

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """Return the parameters of a backend that was created: onehop has none."""
        return {}

    def _check_backends(self, backends: list[str] | tuple[str, ...] | None) -> None:
        for backend in backends or ():
            if backend not in self.backends:
                have = ", ".join(self.backends) or "none"
                msg = f"backend {backend!r}: agent {self.name!r} has {have}"
                raise KeyError(msg)

    # ---- Memory

    def register_memory(
        self,
        reg_list: Any,  # noqa: ANN401
        mem_type: str | None = None,
        backends: list[str] = [],
    ) -> nixlRegDList:
        """Register memory, which others may read and write then; all of it, or none on an error.

        It may overlap, and be registered again: it is deregistered as often.
        """
        descs = self._reg_list(reg_list, mem_type)
        self._check_backends(backends)
        self._core.memory.register(descs)
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] = []) -> None:
        """Deregister; cancels local transfers that use the memory.

        When it returns nothing accesses the memory. nixlNotFoundError: it is not registered;
        nixlRepostActiveError: a transfer cannot be cancelled now; nixlBackendError: a peer has
        stopped during an access. After both keep the memory, and call again with the same list.
        """
        descs = self._reg_list(dereg_list, None)
        self._check_backends(backends)
        self._core.deregister(descs)

    def _reg_list(self, given: Any, mem_type: str | None) -> nixlRegDList:  # noqa: ANN401
        descs = self.get_reg_descs(given, mem_type)
        if descs is None:
            msg = (
                f"a {type(given).__name__} is no list of registrations: give tuples (address, "
                "length, device, text) or an N x 3 array with mem_type, or tensors"
            )
            raise nixlInvalidParamError(msg)
        if descs.isEmpty():
            msg = "an empty list of registrations: give one or more"
            raise nixlInvalidParamError(msg)
        return descs

    def query_memory(
        self,
        reg_list: Any,  # noqa: ANN401
        backend: str,
        mem_type: str | None = None,
    ) -> list[dict[str, str] | None]:
        """Raise nixlNotSupportedError: it is for storage."""
        raise _unsupported("query_memory")

    def prep_mem_view(self, dlist: object, *, backends: list[str] | None = None) -> int:
        """Raise nixlNotSupportedError."""
        raise _unsupported("prep_mem_view")

    def release_mem_view(self, mvh: int) -> None:
        """Raise nixlNotSupportedError."""
        raise _unsupported("release_mem_view")

    # ---- Other agents

    def get_agent_metadata(self) -> bytes:
        """Return bytes that others add to reach this agent, with all that is registered now.

        Their holder may read and write that memory: pass them on with care.
        """
        return self._core.metadata()

    def get_partial_agent_metadata(
        self,
        descs: nixlRegDList | None,
        inc_conn_info: bool = False,
        backends: list[str] = [],
    ) -> bytes:
        """Return bytes with some of the registrations; with inc_conn_info they suffice to connect.

        nixlNotFoundError: one is not registered.
        """
        self._check_backends(backends)
        some = nixlRegDList(nixl_mem_t.DRAM_SEG) if descs is None else descs
        return self._core.partial_metadata(some, inc_conn_info)

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Add another agent by its metadata, or merge newer registrations; return its name.

        nixlMismatchError: the bytes are none of an onehop agent of this version.
        """
        return self._core.add(bytes_of(metadata)).encode()

    def remove_remote_agent(self, agent: str | bytes) -> None:
        """Forget another agent; handles of it are of no use then. Nothing if it is not known."""
        self._core.remove(text_of(agent))

    def check_remote_metadata(self, agent: str | bytes, descs: nixlXferDList | None = None) -> bool:
        """Whether another agent is known, not lost, and has registered these descriptors."""
        remote = self._core.known(text_of(agent))
        if remote is None:
            return False
        if descs is None or descs.isEmpty():
            return True
        try:
            remote.locate(descs.getType(), descs.rows)
        except nixlNotFoundError:
            return False
        return True

    def make_connection(self, remote_agent: str | bytes, backends: list[str] = []) -> None:
        """Connect now; without it the first transfer or notification does."""
        self._check_backends(backends)
        core = self._core
        core.remote(text_of(remote_agent)).control(core.memory.endpoint_on(HOST))

    def explain(self, remote_agent: str | bytes) -> Explanation:
        """Return which path each kind of memory takes to another agent, and why."""
        name = text_of(remote_agent)
        remote = self._core.remote(name)
        found = []
        for link in remote.links():
            devices = (link.owner.device, link.target.device)
            here, there = ("host" if one == HOST else f"GPU {one}" for one in devices)
            found.append((here, there, link.peer.info().label, onehop.paths(link.peer)))
        return Explanation(name, found)

    # ---- Transfers

    def prep_xfer_dlist(
        self,
        agent_name: str | bytes,
        xfer_list: Any,  # noqa: ANN401
        mem_type: str | None = None,
        backends: list[str] = [],
    ) -> nixl_prepped_dlist_handle:
        """Prepare local descriptors (the name "" or "NIXL_INIT_AGENT"), or those of another agent.

        nixlNotFoundError: the agent is not known, or a descriptor lies in no registration of it.
        """
        descs = self._xfer_list(xfer_list, mem_type)
        self._check_backends(backends)
        name = text_of(agent_name)
        core = self._core
        side: Local | Remote
        if name in ("", _SELF):
            side = Local(core.memory.locate(descs.getType(), descs.rows))
        else:
            remote = core.remote(name)
            remote.check()
            places = remote.locate(descs.getType(), descs.rows)
            side = Remote(places, remote)
        return nixl_prepped_dlist_handle(core, side)

    def _xfer_list(self, given: Any, mem_type: str | None) -> nixlXferDList:  # noqa: ANN401
        descs = self.get_xfer_descs(given, mem_type)
        if descs is None:
            msg = (
                f"a {type(given).__name__} is no list of descriptors: give tuples (address, "
                "length, device) or an N x 3 or N x 5 array with mem_type, or tensors"
            )
            raise nixlInvalidParamError(msg)
        return descs

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Any,  # noqa: ANN401
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Any,  # noqa: ANN401
        notif_msg: bytes | str = b"",
        backends: list[str] = [],
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """Make a transfer of some blocks of two prepared lists: "WRITE" or "READ".

        notif_msg reaches the remote agent behind all bytes, for READ too. Neighbours are always
        joined. The blocks of a strided list are counted from its first row on.
        """
        put = self._operation(operation)
        self._check_backends(backends)
        local = self._side(local_xfer_side, Local, "local_xfer_side")
        remote = self._side(remote_xfer_side, Remote, "remote_xfer_side")
        ours = indices_of(local_indices, local.places.blocks, "local_indices")
        theirs = indices_of(remote_indices, remote.places.blocks, "remote_indices")
        if len(ours) != len(theirs):
            msg = f"{len(ours)} local_indices and {len(theirs)} remote_indices: give as many"
            raise nixlInvalidParamError(msg)
        return self._transfer(put, local, remote, (ours, theirs), notif_msg)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str | bytes,
        notif_msg: bytes | str = b"",
        backends: list[str] = [],
    ) -> nixl_xfer_handle:
        """Make a transfer between two lists of descriptors, block by block."""
        put = self._operation(operation)
        self._check_backends(backends)
        for descs in (local_descs, remote_descs):
            if not isinstance(descs, nixlXferDList):
                msg = f"a {type(descs).__name__} is no nixlXferDList: use get_xfer_descs()"
                raise nixlInvalidParamError(msg)
        core = self._core
        remote = core.remote(text_of(remote_agent))
        ours = core.memory.locate(local_descs.getType(), local_descs.rows)
        theirs = remote.locate(remote_descs.getType(), remote_descs.rows)
        return self._transfer(
            put,
            Local(ours),
            Remote(theirs, remote),
            None,
            notif_msg,
        )

    def _operation(self, operation: str) -> bool:
        try:
            return self.nixl_ops[operation] == nixl_xfer_op_t.NIXL_WRITE
        except KeyError:
            msg = f"operation is {operation!r}: give one of {', '.join(self.nixl_ops)}"
            raise KeyError(msg) from None

    def _side(self, handle: nixl_prepped_dlist_handle, kind: type[Any], what: str) -> Any:  # noqa: ANN401
        if not isinstance(handle, nixl_prepped_dlist_handle):
            msg = f"{what} is a {type(handle).__name__}: give what prep_xfer_dlist() returned"
            raise nixlInvalidParamError(msg)
        handle.check(self._core)
        if not isinstance(handle.side, kind):
            side = "this agent" if kind is Local else "another agent"
            msg = f"{what} was not prepared as a list of {side}: see agent_name of prep_xfer_dlist"
            raise nixlInvalidParamError(msg)
        return handle.side

    def _transfer(
        self,
        put: bool,
        local: Local,
        remote: Remote,
        numbers: tuple[Numbers, Numbers] | None,
        notif_msg: bytes | str,
    ) -> nixl_xfer_handle:
        if remote.agent.removed:
            remote.agent.check()
        notify = bytes_of(notif_msg) or None
        core = self._core
        core.sweep()
        transfer = Transfer(core, put, local, remote, numbers, notify)
        remote.agent.calls.run(transfer.prepare, transfer.unprepared)
        return nixl_xfer_handle(core, transfer)

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b"") -> str:
        """Post a transfer: "DONE", or "PROC" until check_xfer_state() says so.

        nixlRepostActiveError: it is in flight; nixlRemoteDisconnectError: the peer is gone;
        nixlNotFoundError: the memory was deregistered, here or there.
        """
        return self._of(handle).post(bytes_of(notif_msg) or None)

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """Return "DONE" or "PROC"; raises what the transfer ended with."""
        return self._of(handle).check()

    def _of(self, handle: nixl_xfer_handle) -> Transfer:
        if not isinstance(handle, nixl_xfer_handle):
            msg = (
                f"a {type(handle).__name__} is no transfer: give what make_prepped_xfer() returned"
            )
            raise nixlInvalidParamError(msg)
        handle.check(self._core)
        return handle.transfer

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """Return what a transfer took, and its path. nixlNoTelemetryError: it is off."""
        transfer = self._of(handle)
        if not self._telemetry:
            msg = (
                "telemetry is off: make the agent with capture_telemetry=True, or set "
                "NIXL_TELEMETRY_ENABLE=y"
            )
            raise nixlNoTelemetryError(msg)
        return transfer.telemetry(self.query_xfer_backend(handle))

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """Return the name of the backend that the agent was asked for."""
        self._of(handle)
        return next(iter(self.backends), _OURS[0])

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Return (0, 0, "UNKNOWN"): no cost is known before a transfer."""
        self._of(req_handle)
        return (0, 0, "UNKNOWN")

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """End and release a transfer; when it returns nothing accesses the buffers.

        nixlRepostActiveError: it cannot be cancelled now, and the handle stays. Twice is fine.
        """
        if not isinstance(handle, nixl_xfer_handle):
            msg = f"a {type(handle).__name__} is no transfer"
            raise nixlInvalidParamError(msg)
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Release a prepared list; transfers made from it stay valid. May be called again."""
        if not isinstance(handle, nixl_prepped_dlist_handle):
            msg = f"a {type(handle).__name__} is no prepared list"
            raise nixlInvalidParamError(msg)
        handle.release()

    # ---- Notifications

    def get_new_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:
        """Return the notifications that have come since the last call, by their sender's name."""
        self._check_backends(backends)
        found: dict[str, list[bytes]] = {}
        for name, message in self._core.inbox.take():
            found.setdefault(name, []).append(message)
        self._core.sweep()
        return found

    def update_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:
        """Add new notifications to `notifs`, and return it."""
        for name, messages in self.get_new_notifs(backends).items():
            self.notifs.setdefault(name, []).extend(messages)
        return self.notifs

    def check_remote_xfer_done(
        self,
        remote_agent_name: str | bytes,
        lookup_tag: bytes | str,
        backends: list[str] = [],
        tag_is_prefix: bool = True,
    ) -> bool:
        """Whether a notification of this agent begins with the tag (or has it); takes the first."""
        name, tag = text_of(remote_agent_name), bytes_of(lookup_tag)
        messages = self.update_notifs(backends).get(name, [])
        for place, message in enumerate(messages):
            if message.startswith(tag) if tag_is_prefix else tag in message:
                del messages[place]
                return True
        return False

    def send_notif(
        self,
        remote_agent_name: str | bytes,
        notif_msg: bytes | str,
        backend: str | None = None,
    ) -> None:
        """Send a notification without a transfer. nixlNotFoundError: the agent is not known."""
        self._check_backends([backend] if backend else [])
        self._core.notify(text_of(remote_agent_name), bytes_of(notif_msg))

    # ---- Exchange of metadata by a listener or etcd

    def send_local_metadata(self, ip_addr: str = "", port: int = 8888) -> None:
        """Raise nixlNotSupportedError."""
        raise _unsupported("send_local_metadata", _BY_HAND)

    def send_partial_agent_metadata(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: list[str] = [],
        ip_addr: str = "",
        port: int = 8888,
        label: str = "",
    ) -> None:
        """Raise nixlNotSupportedError."""
        raise _unsupported("send_partial_agent_metadata", _BY_HAND)

    def fetch_remote_metadata(
        self, remote_agent: str, ip_addr: str = "", port: int = 8888, label: str = ""
    ) -> None:
        """Raise nixlNotSupportedError."""
        raise _unsupported("fetch_remote_metadata", _BY_HAND)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = 8888) -> None:
        """Raise nixlNotSupportedError."""
        raise _unsupported("invalidate_local_metadata", _BY_HAND)


_BY_HAND = "pass the bytes of get_agent_metadata() on, and add_remote_agent() them"

# Methods that the real agent answers, once there is one.
_FORWARDED = frozenset(
    name
    for name in (*vars(nixl_agent), *vars(DescriptorCalls))
    if not name.startswith("_") and name not in ("agent", "create_backend", "explain")
) | {"notifs"}


def _unsupported(call: str, instead: str = "") -> nixlNotSupportedError:
    hint = f": {instead}" if instead else ""
    return nixlNotSupportedError(f"onehop has no {call}(){hint}")


def _asked_for_telemetry() -> bool:
    return os.environ.get("NIXL_TELEMETRY_ENABLE", "").lower() in ("1", "y", "yes", "on", "true")
