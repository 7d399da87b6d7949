# SPDX-License-Identifier: Apache-2.0
"""Finalizers that let go of an agent's parts while the interpreter ends, as vLLM's do."""

import subprocess
import sys
import textwrap

import pytest
from conftest import Library

PROGRAM = textwrap.dedent(
    """
    import weakref

    parts = {}

    def let_go():
        agent = parts["agent"]
        agent.release_xfer_handle(parts["transfer"])
        agent.release_dlist_handle(parts["local"])
        agent.release_dlist_handle(parts["remote"])
        agent.remove_remote_agent("other")
        agent.remove_remote_agent("nobody")
        agent.deregister_memory(parts["registered"])
        agent.check_remote_metadata("other")
        print("let go", flush=True)

    # Before the library is imported: it runs after the library's own end.
    weakref.finalize(let_go, let_go)

    import numpy as np
    from nixl._api import nixl_agent

    agent, other = nixl_agent("agent"), nixl_agent("other")
    ours, theirs = np.ones(4096, np.uint8), np.zeros(4096, np.uint8)
    rows = [(ours.ctypes.data, 4096, 0, "")]
    parts["registered"] = agent.register_memory(rows, "DRAM")
    other.register_memory([(theirs.ctypes.data, 4096, 0, "")], "DRAM")
    agent.add_remote_agent(other.get_agent_metadata())
    parts["local"] = agent.prep_xfer_dlist("", [rows[0][:3]], "DRAM")
    parts["remote"] = agent.prep_xfer_dlist("other", [(theirs.ctypes.data, 4096, 0)], "DRAM")
    parts["transfer"] = agent.make_prepped_xfer(
        "WRITE", parts["local"], [0], parts["remote"], [0], b"written"
    )
    agent.transfer(parts["transfer"])
    while agent.check_xfer_state(parts["transfer"]) != "DONE":
        pass
    assert theirs.all()
    parts["agent"] = agent
    """
)


# Whether a thread of the library is stopped with a lock is a matter of chance.
@pytest.mark.parametrize("attempt", range(10))
def test_finalizers_let_go_of_everything(attempt):
    """NIXL's part ends as well, but its libraries crash after that: no exit code to compare."""
    library = Library("onehop")
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=library.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (told.returncode, told.stdout.split("\n")[0]) == (0, "let go"), told.stderr
    assert "Traceback" not in told.stderr
