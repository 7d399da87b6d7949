# SPDX-License-Identifier: Apache-2.0
"""The three ways to let programs of NIXL run on onehop, each in a process of its own."""

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import onehop.nixl
import pytest
from onehop.nixl import bindings, nixl_agent
from onehop.nixl.shims import SHIM
from shim_programs import check_without_numpy, found_by_spawned, python

USE = """
import nixl, nixl_cu12, nixl_cu13
import nixl._api as api, nixl._bindings as bindings, nixl._utils, nixl.logging
from nixl_cu12._api import nixl_agent as of_12
from nixl_cu13._api import nixl_agent as of_13, nixl_agent_config
from nixl_cu13._bindings import nixlNotFoundError
from nixl.logging import get_logger
assert of_12 is of_13 is api.nixl_agent is nixl.nixl_agent
assert nixlNotFoundError is bindings.nixlNotFoundError is nixl.nixlNotFoundError
assert of_12.__module__.startswith("onehop.nixl")
get_logger("test").info("x")
agent = of_12("A", nixl_agent_config(backends=["UCX"]))
assert agent.get_agent_metadata()
"""


def test_by_pythonpath():
    found = subprocess.run(
        [sys.executable, "-m", "onehop", "nixl-path"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()
    assert found == str(SHIM) == onehop.nixl.path()
    python(USE, PYTHONPATH=found)


def test_by_install():
    python("import onehop.nixl; onehop.nixl.install(); onehop.nixl.install()\n" + USE)


def test_install_takes_the_place_of_what_was_imported(tmp_path):
    package = tmp_path / "nixl"
    package.mkdir()
    (package / "__init__.py").write_text("real = True")
    before = "import nixl; assert nixl.real; import onehop.nixl; onehop.nixl.install()\n"
    python(before + USE, PYTHONPATH=str(tmp_path))


def test_spawned_processes_inherit_it(tmp_path):
    importing = "from nixl._api import nixl_agent as found"
    assert found_by_spawned(tmp_path, "nixl", importing) == "onehop.nixl.agent"


def test_by_entry_point():
    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="onehop-nixl")
    assert entry.value == "onehop.vllm_plugin:plugin"
    load = (
        "import importlib.metadata as m, sys\n"
        "(e,) = m.entry_points(group='vllm.general_plugins', name='onehop-nixl')\n"
        "e.load()()\n"
    )
    ours = "print('nixl._api' in sys.modules)"
    for value in ("0", "1"):  # vLLM sets variables for NIXL before it is imported
        assert python(load + ours, ONEHOP_NIXL=value).strip() == "False"
    python(load + USE, ONEHOP_NIXL="1")


def test_onehop_alone_imports_none_of_it():
    check = "import sys, onehop, onehop.cli; names = 'nixl', 'onehop.nixl', 'numpy'; "
    check += "print([m for m in sys.modules if m.startswith(names)])"
    assert python(check).strip() == "[]"
    assert python("import sys, onehop; print('numpy' in sys.modules)").strip() == "False"


def test_without_numpy():
    check_without_numpy("nixl")


def test_the_shims_are_not_imported_by_accident():
    assert not SHIM.name.isidentifier()
    assert SHIM.parent == Path(onehop.nixl.__file__).parent
    with pytest.raises(ImportError):
        importlib.import_module("onehop.nixl.nixl")


REAL_API = """
import enum

class nixl_thread_sync_t(enum.Enum):
    NIXL_THREAD_SYNC_NONE, NIXL_THREAD_SYNC_STRICT, NIXL_THREAD_SYNC_RW = "none", "strict", "rw"

class nixl_agent_config:
    def __init__(
        self, enable_prog_thread=True, enable_listen_thread=False, listen_port=8888,
        capture_telemetry=False, num_threads=0, backends=["UCX"], sync_mode=None
    ):
        self.given = (
            enable_prog_thread, enable_listen_thread, listen_port, capture_telemetry, num_threads,
            backends, sync_mode and sync_mode.value,
        )

class nixlNotFoundError(Exception): pass

class nixl_agent:
    def __init__(self, name, config):
        self.name, self.backends, self.backend_mems = name, {}, {}
        self.given = config.given
        self.plugin_list, self.notifs = ["OBJ"], {"real": []}
    def create_backend(self, backend, initParams={}):
        if backend != "OBJ":
            raise nixlNotFoundError("no " + backend)
        self.backends[backend] = 5
    def register_memory(self, *arguments):
        return ("real", arguments)
    def get_agent_metadata(self):
        return self.given
    def get_new_notifs(self):
        raise nixlNotFoundError("of the real one")
"""

FORWARD = """
import onehop.nixl; onehop.nixl.install()
from nixl._api import nixl_agent, nixl_agent_config
from nixl._bindings import nixlNotFoundError
agent = nixl_agent("A", nixl_agent_config(backends=[]))
try:
    agent.create_backend("NOPE")
except nixlNotFoundError as failure:
    assert "no NOPE" in str(failure)
agent.create_backend("OBJ", {"bucket": "b"})
assert agent.register_memory([1], "OBJ") == ("real", ([1], "OBJ"))
assert agent.backends == {"OBJ": 5} and agent.plugin_list == ["OBJ"] and agent.name == "A"
try:
    agent.get_new_notifs()
except nixlNotFoundError as failure:
    assert "of the real one" in str(failure)
else:
    raise SystemExit("no error")
assert nixl_agent("A", nixl_agent_config(backends=["OBJ"])).backends == {"OBJ": 5}
# Another agent, and later imports, are ours all the same.
import nixl_cu13._api
assert nixl_cu13._api.nixl_agent is nixl_agent
assert nixl_agent("B").backends == {"UCX": "UCX"}
"""


# Its configuration goes with it. SGLang's HiCache gives one of the module _bindings.
CONFIGURED = """
import onehop.nixl; onehop.nixl.install()
from nixl._api import nixlBind, nixl_agent, nixl_agent_config, nixl_thread_sync_t
strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
config = nixl_agent_config(False, True, 99, True, num_threads=3, backends=[], sync_mode=strict)
agent = nixl_agent("A", config)
agent.create_backend("OBJ")
assert agent.get_agent_metadata() == (False, True, 99, True, 3, [], "strict")

agent = nixl_agent("B", nixl_agent_config(backends=[]))
below = nixlBind.nixlAgentConfig()
assert (below.useProgThread, below.listenPort, below.lthrDelay) == (False, 8888, 100_000)
below.useProgThread, below.syncMode = True, nixlBind.NIXL_THREAD_SYNC_RW
agent.agent = nixlBind.nixlAgent("B", below)
agent.plugin_list = agent.agent.getAvailPlugins()
assert agent.get_plugin_list() == ["UCX", "ONEHOP", "OBJ"]
agent.create_backend("OBJ")
assert agent.get_agent_metadata() == (True, False, 8888, False, 0, [], "rw")
"""


def real_nixl(folder):
    """Make a package that stands for the real NIXL."""
    package = folder / "nixl_cu13"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_api.py").write_text(REAL_API)
    return str(folder)


@pytest.mark.parametrize("program", [FORWARD, CONFIGURED])
def test_other_backends_are_the_real_ones(tmp_path, program):
    python(program, PYTHONPATH=real_nixl(tmp_path))


def test_an_agent_below_without_the_real_nixl():
    agent = nixl_agent("A")
    agent.agent = bindings.nixlAgent("A", bindings.nixlAgentConfig())
    assert agent.agent.getAvailPlugins() == ["UCX", "ONEHOP"]
    assert agent.add_remote_agent(nixl_agent("B").get_agent_metadata()) == b"B"
    with pytest.raises(bindings.nixlInvalidParamError, match="nixlAgent"):
        agent.agent = None
