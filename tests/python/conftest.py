# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests within one process; processes.py has those for several."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hosts
import pytest
from processes import LocalPair

TESTS = Path(__file__).parents[1]
# Workers of pytest-xdist may have it, and tables are as wide as it says.
os.environ.pop("COLUMNS", None)


def settings():
    return {name: value for name, value in os.environ.items() if name.startswith("ONEHOP_")}


SETTINGS = settings()


@pytest.fixture(scope="module", autouse=True)
def _settings_stay():
    """Fail a module after which later ones would run under other settings."""
    yield
    assert settings() == SETTINGS


@pytest.fixture
def pair():
    made = LocalPair()
    yield made
    for endpoint in made.endpoints:
        endpoint.close()


@pytest.fixture(params=["auto", "socket", "ucx"])
def transport(request, monkeypatch):
    """As the processes choose, which is by shared memory; or as between hosts."""
    if request.param == "ucx" and (why := hosts.why_no_ucx()):
        pytest.skip(f"no UCX: {why}")
    if request.param != "auto":
        monkeypatch.setenv("ONEHOP_TRANSPORT", request.param)
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    return request.param


def build_fake_cuda(compiler, folder):
    """Compile tests/fake_cuda, as its CMakeLists.txt does."""
    sources = sorted((TESTS / "fake_cuda").glob("*.cc"))
    flags = ["-std=c++20", "-O1", "-fPIC", "-pthread", "-fvisibility=hidden"]
    flags += [
        f"-I{TESTS / 'fake_cuda'}",
        f"-I{TESTS.parent / 'src'}",
        f"-I{TESTS.parent / 'include'}",
    ]
    library = folder / "libonehop_fake_cuda.so"

    def compile_one(source):
        made = folder / f"{source.stem}.o"
        command = [compiler, *flags, "-c", str(source), "-o", str(made)]
        subprocess.run(command, check=True, timeout=300)
        return str(made)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    # Its threads run until the process ends: it must never be unloaded.
    link = [compiler, "-shared", "-pthread", "-Wl,-z,nodelete", *objects, "-o", str(library)]
    subprocess.run(link, check=True, timeout=300)
    return library


@pytest.fixture(scope="session")
def fake_cuda_library(tmp_path_factory):
    """A CUDA driver without a GPU: FAKE_CUDA_LIBRARY names one that is built already."""
    if built := os.environ.get("FAKE_CUDA_LIBRARY"):
        return Path(built)
    names = [os.environ.get("CXX"), "g++", "c++", "clang++"]
    compiler = next((name for name in names if name and shutil.which(name)), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler to build the fake CUDA driver with")
    return build_fake_cuda(compiler, tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture
def fake_gpus(fake_cuda_library, monkeypatch, tmp_path):
    """Two GPUs for the processes that a test starts; this process never loads their driver."""
    monkeypatch.setenv("ONEHOP_CUDA_LIBRARY", str(fake_cuda_library))
    # The same file is a management library.
    monkeypatch.setenv("ONEHOP_NVML_LIBRARY", str(fake_cuda_library))
    monkeypatch.setenv("FAKE_CUDA", "devices=2,memory=256M,p2p=all")
    monkeypatch.setenv("FAKE_CUDA_STATE", str(tmp_path / "gpus"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture(params=hosts.WAYS, ids=lambda way: way.name)
def way(request):
    """How bytes travel between hosts, where there can be several on this machine."""
    if why := hosts.why_not():
        pytest.skip(f"no second host: {why}")
    if request.param.path == "ucx" and (why := hosts.why_no_ucx()):
        pytest.skip(f"no UCX: {why}")
    return request.param


@pytest.fixture
def network(way):
    """Two hosts joined by a veth pair."""
    with hosts.Network(way) as made:
        yield made


@pytest.fixture
def wired(way):
    """Two hosts joined by a Wire, which can be stopped in the middle of something."""
    with hosts.Network(way, wire={}) as made:
        yield made
