# SPDX-License-Identifier: Apache-2.0
"""The libraries under test: the real NIXL, which shows that a test is right, and onehop."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ONEHOP_ACTIVATION = ("PYTHONPATH", "ONEHOP_NIXL", "ONEHOP_METRICS", "ONEHOP_TRACE")


def pytest_collection_modifyitems(items):
    """Each wait of these tests has a deadline of its own; all of one test take minutes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


def onehop_path(kind: str) -> str:
    """The folder whose `nixl` or `mooncake` is onehop's."""
    command = [str(Path(sys.executable).with_name("onehop")), f"{kind}-path"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return told.stdout.strip()


class Library:
    def __init__(self, name: str, *, plugin: bool = False, kind: str = "nixl"):
        self.name = name
        self.environment = {
            key: value for key, value in os.environ.items() if key not in ONEHOP_ACTIVATION
        }
        # Small models on a shared machine: one thread each, and no service on the network.
        self.environment |= {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            # By default Ray's workers give way to all else on the machine.
            "RAY_worker_niceness": "0",
        }
        if name == "onehop":
            if plugin:
                self.environment["ONEHOP_NIXL"] = "1"
            else:
                self.environment["PYTHONPATH"] = onehop_path(kind)
        elif find_spec("nixl_cu13") is None and find_spec("nixl_cu12") is None:
            pytest.skip("the real NIXL is not installed")

    def is_origin(self, module_file: str) -> bool:
        """Whether a module's file belongs to this library and not to the other one."""
        return ("onehop" in Path(module_file).parts) == (self.name == "onehop")


@pytest.fixture(scope="session", params=["nixl", "onehop"])
def library(request) -> Library:
    return Library(request.param)


def needs(package: str) -> None:
    """Skips where a package is not installed. Importing vLLM takes too long to ask so."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="session")
def vllm():
    needs("vllm")


@pytest.fixture(scope="session")
def ray():
    needs("ray")


@pytest.fixture(scope="session")
def sglang():
    needs("sglang")


@pytest.fixture(scope="session")
def tiny_model(vllm, tmp_path_factory):
    import tiny_model

    folder = tmp_path_factory.mktemp("model")
    tiny_model.write(folder)
    return folder
