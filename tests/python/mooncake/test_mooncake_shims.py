# SPDX-License-Identifier: Apache-2.0
"""The ways to let programs of Mooncake run on onehop, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import onehop.mooncake
from onehop.mooncake.shims import SHIM
from shim_programs import check_without_numpy, found_by_spawned, python

USE = """
from mooncake.engine import TransferEngine, TransferOpcode
import mooncake.engine
assert TransferEngine.__module__ == "onehop.mooncake.engine", TransferEngine
assert TransferEngine.TransferOpcode is TransferOpcode is mooncake.engine.TransferOpcode
made = TransferEngine()
assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
assert 0 < made.get_rpc_port() < 65536
"""


def test_by_pythonpath():
    command = [sys.executable, "-m", "onehop", "mooncake-path"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(SHIM) == onehop.mooncake.path()
    python(USE, PYTHONPATH=str(SHIM))


def test_by_install():
    python("import onehop.mooncake; onehop.mooncake.install(); onehop.mooncake.install()\n" + USE)


def real(folder):
    """Make a package as the real one."""
    package = folder / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text("class TransferEngine: pass\nTransferOpcode = None")
    (package / "store.py").write_text("real = True")


STORE = "import mooncake.store; assert mooncake.store.real\n"


def test_install_takes_the_place_of_what_was_imported(tmp_path):
    real(tmp_path)
    code = "import mooncake.engine, onehop.mooncake; onehop.mooncake.install()\n" + USE + STORE
    python(code, PYTHONPATH=str(tmp_path))


def test_other_modules_are_the_real_ones(tmp_path):
    real(tmp_path)
    python(USE + STORE, PYTHONPATH=os.pathsep.join([str(SHIM), str(tmp_path)]))
    done = "try:\n    import mooncake.store\nexcept ImportError:\n    print('none')\n"
    assert python(done, PYTHONPATH=str(SHIM)).strip() == "none"


def test_spawned_processes_inherit_it(tmp_path):
    importing = "from mooncake.engine import TransferEngine as found"
    assert found_by_spawned(tmp_path, "mooncake", importing) == "onehop.mooncake.engine"


def test_onehop_alone_imports_none_of_it():
    check = "import sys, onehop, onehop.cli; names = 'mooncake', 'onehop.mooncake', 'numpy'; "
    check += "print([m for m in sys.modules if m.startswith(names)])"
    assert python(check).strip() == "[]"


def test_without_numpy():
    check_without_numpy("mooncake")


def test_the_shim_is_not_imported_by_accident():
    assert not SHIM.name.isidentifier()
    assert SHIM.parent == Path(onehop.mooncake.__file__).parent
