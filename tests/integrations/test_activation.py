# SPDX-License-Identifier: Apache-2.0
"""The ways to put onehop in NIXL's place, with the real NIXL installed beside it."""

import subprocess
import sys

import pytest
from conftest import Library, needs

ORIGIN = "import sys; print(sys.modules[nixl_agent.__module__].__file__)"
PROGRAMS = {
    "path": (False, "from nixl._api import nixl_agent"),
    "path, cu12": (False, "from nixl_cu12._api import nixl_agent"),
    "path, cu13": (False, "from nixl_cu13._api import nixl_agent"),
    "install": (
        None,
        "import onehop.nixl; onehop.nixl.install(); from nixl._api import nixl_agent",
    ),
    "plugin": (
        True,
        "from vllm.plugins import load_general_plugins; load_general_plugins(); "
        "from vllm.distributed.nixl_utils import NixlWrapper as nixl_agent",
    ),
}


def check_origin(library, program):
    """Run a program that ends with where its nixl_agent comes from: from this library."""
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=library.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert library.is_origin(told.stdout.splitlines()[-1]), told.stdout


@pytest.mark.parametrize("way", PROGRAMS)
def test_nixl_is_onehop(way):
    plugin, program = PROGRAMS[way]
    library = Library("onehop", plugin=bool(plugin))
    if plugin is None:
        library.environment.pop("PYTHONPATH")
    if plugin:
        needs("vllm")
    check_origin(library, f"{program}; {ORIGIN}")


def test_without_being_asked_it_is_not():
    library = Library("nixl")
    program = f"import onehop; from nixl._api import nixl_agent; {ORIGIN}; import os; "
    check_origin(library, program + "sys.stdout.flush(); os._exit(0)")
