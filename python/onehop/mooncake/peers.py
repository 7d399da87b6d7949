# SPDX-License-Identifier: Apache-2.0
"""The engines of other sessions; their metadata is requested on first use."""

from __future__ import annotations

import threading

from onehop.mooncake import meeting
from onehop.nixl.core import Core
from onehop.nixl.errors import nixlRemoteDisconnectError
from onehop.nixl.metadata import parse
from onehop.nixl.remote import RemoteAgent

__all__ = ["Peers"]


class _Session:
    """The state of one session; under its lock one thread requests the metadata for all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.agent: RemoteAgent | None = None


class Peers:
    """The engines of other sessions, by session. Threading: any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}

    def find(self, session: str) -> RemoteAgent:
        """Return the engine of a session. A lost engine raises once; the next call asks again.

        nixlRemoteDisconnectError: it is lost; Failure: no engine answers.
        """
        known = self._session(session)
        with known.lock:
            if known.agent is None or known.agent.removed:
                self._ask(session, known)
            assert known.agent is not None
            agent = known.agent
        if agent.lost:
            self.drop(session, agent)
            msg = f"the engine of session {session} is gone: the next call looks for another there"
            raise nixlRemoteDisconnectError(msg)
        return agent

    def ask(self, session: str) -> RemoteAgent:
        """Return the engine of a session with its current registrations."""
        known = self._session(session)
        with known.lock:
            self._ask(session, known)
            assert known.agent is not None
            return known.agent

    def drop(self, session: str, agent: RemoteAgent) -> None:
        """Forget an engine whose link was lost."""
        with self._lock:
            known = self._sessions.get(session)
            if known is not None and known.agent is agent:
                del self._sessions[session]
        if not agent.removed:
            self._core.remove(agent.name)

    def _session(self, session: str) -> _Session:
        with self._lock:
            return self._sessions.setdefault(session, _Session())

    def _ask(self, session: str, known: _Session) -> None:
        before = known.agent
        data = meeting.ask(session)
        ours = parse(data).name == self._core.name
        known.agent = self._core.remote(self._core.name if ours else self._core.add(data))
        if before is not None and before is not known.agent and not before.removed:
            self._core.remove(before.name)  # another process now has this session
