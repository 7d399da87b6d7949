# SPDX-License-Identifier: Apache-2.0
"""The three ways to let programs of NIXL run on onehop, each in a process of its own."""

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import onehop.nixl
import pytest
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
class nixl_agent_config:
    def __init__(self, backends, capture_telemetry):
        self.backends = backends

class nixlNotFoundError(Exception): pass

class nixl_agent:
    def __init__(self, name, config):
        self.name, self.backends, self.backend_mems = name, {}, {}
        self.plugin_list, self.notifs = ["OBJ"], {"real": []}
    def create_backend(self, backend, initParams={}):
        if backend != "OBJ":
            raise nixlNotFoundError("no " + backend)
        self.backends[backend] = 5
    def register_memory(self, *arguments):
        return ("real", arguments)
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


def test_other_backends_are_the_real_ones(tmp_path):
    package = tmp_path / "nixl_cu13"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_api.py").write_text(REAL_API)
    python(FORWARD, PYTHONPATH=str(tmp_path))
