# SPDX-License-Identifier: Apache-2.0
"""`onehop bench nixl`: its rows, the real NIXL beside it or missing, and spoilt bytes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from command import chosen, rows_of, rows_that_passed, run_onehop
from test_cli_bench import KEYS, rows, run

pytest.importorskip("numpy")

POSTED = ["write_first", "write", "read_first", "read"]
MODES = ["agent", "first", "prep", "prep_strided", *POSTED, "idle"]
MOVING = MODES[1:-1]
SMALL = (
    "--rows", "1000", "--blocks", "50", "--rounds", "1", "--iters", "3", "--posts", "3",
    "--idle", "0.05"
)  # fmt: skip


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Return a folder from which the processes of a test import first."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def stand_in(packages):
    """Put a package in the place of the real NIXL; its agents are onehop's."""
    (packages / "nixl_cu13").mkdir()
    (packages / "nixl_cu13" / "__init__.py").touch()
    (packages / "nixl_cu13" / "_api.py").write_text("from onehop.nixl.api import *\n")
    (packages / "nixl_cu13-0.7.dist-info").mkdir()
    (packages / "nixl_cu13-0.7.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nixl-cu13\nVersion: 0.7\n"
    )


@pytest.fixture
def no_nixl(packages):
    for family in ("nixl_cu13", "nixl_cu12"):
        (packages / family).mkdir()
        (packages / family / "__init__.py").write_text("raise ImportError('not here')\n")


def test_rows() -> None:
    found = rows("nixl", *SMALL, "--rounds", "2")
    assert [row["mode"] for row in found] == MODES
    by_mode = {row["mode"]: row for row in found}
    for row in found:
        assert row["api"] == "onehop"
        assert row["low_us"] <= row["p50_us"] <= row["high_us"]
        assert "of_nixl" not in row
    for mode in POSTED:
        row = by_mode[mode]
        iters = 6 if mode.endswith("first") else 12
        assert (row["path"], row["size"], row["blocks"], row["iters"]) == ("shm", 4096, 50, iters)
        assert row["block_us"] == pytest.approx(row["p50_us"] / 50)
        assert row["GBps"] == pytest.approx(4096 * 50 / row["p50_us"] / 1e3)
        assert row.get("make_us", 0) > 0 or not mode.endswith("first")
        assert 0 < row["post_us"] <= row["p50_us"]
    assert (by_mode["first"]["path"], by_mode["first"]["size"]) == ("shm", 2**20)
    # Both sides of each round make an agent, and leave it idle.
    assert by_mode["agent"]["iters"] == by_mode["idle"]["iters"] == 4
    assert by_mode["prep"]["blocks"] == 1000
    assert by_mode["prep_strided"]["blocks"] == 31**2
    assert by_mode["idle"]["cpu_percent"] == pytest.approx(by_mode["idle"]["p50_us"] / 1e4)


def test_chosen_rows_by_another_transport() -> None:
    found = rows(
        "nixl", *SMALL, "--transport", "socket", "--sizes", "64,4K", *chosen("read", "write")
    )
    assert [(row["mode"], row["size"]) for row in found] == [
        (mode + post, size)
        for mode in ("write", "read")
        for size in (64, 4096)
        for post in ("_first", "")
    ]
    assert {row["path"] for row in found} == {"socket"}


@pytest.mark.usefixtures("stand_in")
def test_beside_another_library() -> None:
    found = rows("nixl", "--vs", "nixl", *SMALL, "--rounds", "2")
    assert [(row["mode"], row["api"]) for row in found] == [
        (mode, api) for mode in MODES for api in ("onehop", "nixl")
    ]
    for row in found:
        if row["api"] == "onehop":
            assert row["of_nixl"] > 0
            assert "nixl" not in row
        else:
            assert "of_nixl" not in row
            assert row["nixl"] == "nixl-cu13 0.7"


@pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("nixl_cu13", "nixl_cu12"))),
    reason="the real NIXL is not installed",
)
def test_beside_the_real_nixl() -> None:
    found = rows("nixl", "--vs", "nixl", *SMALL)
    assert [row["api"] for row in found] == ["onehop", "nixl"] * len(MODES)
    assert {row["path"] for row in found if row["api"] == "nixl"} == {"none", "UCX"}


@pytest.mark.usefixtures("stand_in")
def test_table() -> None:
    done = run("nixl", "--vs", "nixl", *SMALL)
    assert done.returncode == 0, done.stderr
    for word in ("nixl-cu13 0.7", "write 50 x 4K", "prep 1000 x 64", "of NIXL", "CPU %", "shm"):
        assert word in done.stdout


@pytest.mark.usefixtures("stand_in")
def test_spoilt_bytes_are_found() -> None:
    done = run("nixl", "--vs", "nixl", *SMALL, "--json", "-", OH_BENCH_CORRUPT="1")
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr
    for row in rows_of(done):
        assert (row["wrong"] > 0) == (row["mode"] in MOVING), row


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("lazy", [1, 2])
def test_a_post_that_moves_nothing_is_found(packages, lazy) -> None:
    """`lazy`: the post that says it is done and is not; the others do what they should."""
    (packages / "nixl_cu13" / "_api.py").write_text(f"""
from collections import Counter
from onehop.nixl import api
from onehop.nixl.api import *

class nixl_agent(api.nixl_agent):
    posts = Counter()

    def transfer(self, handle, *more):
        self.posts[id(handle)] += 1
        return "DONE" if self.posts[id(handle)] == {lazy} else super().transfer(handle, *more)

    def release_xfer_handle(self, handle):
        del self.posts[id(handle)]
        super().release_xfer_handle(handle)
""")
    done = run("nixl", "--vs", "nixl", *SMALL, *chosen("write", "read"), "--json", "-")
    assert done.returncode == 1
    for row in rows_of(done):
        wrong = row["api"] == "nixl" and row["mode"].endswith("_first") == (lazy == 1)
        assert (row["wrong"] > 0) == wrong, row


@pytest.mark.usefixtures("no_nixl")
def test_missing_nixl_is_told() -> None:
    done = run("nixl", "--vs", "nixl", *SMALL)
    assert done.returncode == 1
    assert "the real NIXL is not installed" in done.stderr
    assert "pip install nixl" in done.stderr
    assert "Traceback" not in done.stderr
    rows("nixl", *SMALL, *chosen("first"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--memory", "pinned"), "host or cuda"),
        (("--devices", "0"), "--memory cuda"),
        (("--sizes", "0"), "at least one byte"),
        (("--rows", "10"), "10"),
        (("--posts", "1"), "x>=2"),
        (("--vs", "mooncake"), "mooncake"),
        (("--mode", "append"), "append"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run("nixl", *arguments)
    assert done.returncode == 2
    assert text in done.stderr


# What the benchmark asks of torch, with memory of the fake driver.
TORCH = """
import numpy as np
from fake_gpu import Driver

uint8 = "u1"
from_numpy = np.asarray


class cuda:
    is_available = staticmethod(lambda: CUDA)
    set_device = synchronize = staticmethod(lambda device: None)


class Tensor:
    def __init__(self, driver, address, size, part=slice(None)):
        self.driver, self.address, self.size, self.part = driver, address, size, part

    def __getitem__(self, part):
        return Tensor(self.driver, self.address, self.size, part)

    def data_ptr(self):
        return self.address

    def copy_(self, array):
        whole = np.array(np.frombuffer(self.driver.read(self.address, self.size), "u1"))
        whole[self.part] = array
        self.driver.write(self.address, whole.tobytes())

    def cpu(self):
        return self

    def numpy(self):
        return np.frombuffer(self.driver.read(self.address, self.size), "u1")[self.part]


def empty(size, dtype, device):
    driver = Driver(int(device.removeprefix("cuda:")))
    return Tensor(driver, driver.allocate(bytes(size)), size)
"""


def on_gpus(folder, *arguments, cuda=True, **env):
    (folder / "torch.py").write_text(f"CUDA = {cuda}\n{TORCH}")
    env["PYTHONPATH"] = f"{folder}:{Path(__file__).parent}"
    return run_onehop("bench", "nixl", *SMALL, "--json", "-", *arguments, timeout=280, **env)


@pytest.mark.usefixtures("fake_gpus")
@pytest.mark.parametrize("devices", ["0,1", "0", "1,1"])
def test_memory_of_gpus(packages, devices) -> None:
    found = rows_that_passed(on_gpus(packages, "--memory", "cuda", "--devices", devices))
    twice = [*POSTED[:2] * 2, *POSTED[2:] * 2]
    assert [row["mode"] for row in found] == [*MODES[:4], *twice, "idle"]
    for row in found:
        assert row.keys() >= KEYS
        assert row["memory"] == "cuda"
        assert row["devices"] == (devices if "," in devices else "0,0")
        assert row["path"] == ("cuda_ipc" if row["mode"] in ("first", *POSTED) else "none")
    assert [row["size"] for row in found if row["mode"] == "read"] == [4096, 32768]


@pytest.mark.usefixtures("fake_gpus")
def test_memory_of_a_gpu_and_the_host(packages) -> None:
    done = on_gpus(packages, "--memory", "host,cuda", "--devices", "1", *chosen("write", "read"))
    for row in rows_that_passed(done):
        assert (row["memory"], row["devices"]) == ("host,cuda", "host,1")


@pytest.mark.usefixtures("fake_gpus")
def test_torch_without_cuda_is_told(packages) -> None:
    done = on_gpus(packages, "--memory", "cuda", cuda=False)
    assert done.returncode == 1
    assert "torch has no CUDA here" in done.stderr
