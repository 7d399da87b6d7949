# SPDX-License-Identifier: Apache-2.0
"""The machine as onehop sees it, on the fake driver and the fake management library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("fake_gpus")

SHOW = """
import dataclasses, json, onehop
print(json.dumps(dataclasses.asdict(onehop.topology())))
"""


def run(*arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def topology(**env: str) -> dict:
    return json.loads(run("-c", SHOW, **env))


def test_devices_and_links() -> None:
    found = topology(
        FAKE_CUDA="devices=4,memory=256M,numa=0+0+1,p2p=0-1+2-3", FAKE_NVML="nvlink=0-1,level=50"
    )
    assert found["why_no_devices"] == ""
    assert [gpu["ordinal"] for gpu in found["devices"]] == [0, 1, 2, 3]
    assert [gpu["numa_node"] for gpu in found["devices"]] == [0, 0, 1, 1]
    assert found["devices"][0]["name"] == "Fake GPU"
    assert found["devices"][0]["uuid"].startswith("GPU-")
    links = found["links"]
    for i in range(4):
        for j in range(4):
            pair = {i, j}
            kind = "same" if i == j else "nvlink" if pair == {0, 1} else "pcie_system"
            assert links[i][j]["kind"] == kind
            assert links[i][j]["peer_access"] == (i == j or pair in ({0, 1}, {2, 3}))
            assert links[i][j]["native_atomics"] == links[i][j]["peer_access"]
    assert links[0][1]["nvlinks"] == 18
    assert links[0][1]["nvlink_bandwidth"] == 26_562_000_000
    assert links[0][1]["text"] == "NVLink, 18 links of 26.6 GB/s each way"
    assert links[0][2]["nvlinks"] == 0


def test_devices_that_change_places() -> None:
    settings = {"FAKE_CUDA": "devices=4,memory=256M", "FAKE_NVML": "nvlink=0-2+1-3"}
    plain = topology(**settings)
    found = topology(**settings, CUDA_VISIBLE_DEVICES="3,2,1")
    assert [gpu["uuid"] for gpu in found["devices"]] == [
        plain["devices"][place]["uuid"] for place in (3, 2, 1)
    ]
    kinds = [[link["kind"] for link in row] for row in found["links"]]
    assert kinds == [
        ["same", "pcie_system", "nvlink"],
        ["pcie_system", "same", "pcie_system"],
        ["nvlink", "pcie_system", "same"],
    ]


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"ONEHOP_NVML_LIBRARY": "off"}, "NVML is switched off"),
        ({"ONEHOP_NVML_LIBRARY": "/nonexistent/nvml.so"}, "/nonexistent/nvml.so"),
        ({"FAKE_NVML": "fail=nvmlInit_v2:9"}, "nvmlInit_v2"),
    ],
)
def test_without_nvml(env: dict[str, str], why: str) -> None:
    link = topology(**env)["links"][0][1]
    assert link["kind"] == "unknown"
    assert why in link["text"]
    assert link["peer_access"]


def test_a_node_that_nobody_tells() -> None:
    found = topology(FAKE_CUDA="devices=1,memory=256M,numa=none")
    assert found["devices"][0]["numa_node"] is None
    assert [[link["kind"] for link in row] for row in found["links"]] == [["same"]]


def test_without_a_driver() -> None:
    found = topology(ONEHOP_CUDA_LIBRARY="off")
    assert found["devices"] == []
    assert found["links"] == []
    assert "switched off" in found["why_no_devices"]


def test_nodes_are_those_of_the_host() -> None:
    allowed = set()
    for node in topology()["nodes"]:
        for part in filter(None, node["usable"].split(",")):
            first, _, last = part.partition("-")
            allowed |= set(range(int(first), int(last or first) + 1))
    assert allowed <= os.sched_getaffinity(0)


def test_info() -> None:
    shown = run(
        "-m", "onehop.cli", "info",
        FAKE_CUDA="devices=3,memory=256M,p2p=0-1,numa=0+0+7", FAKE_NVML="nvlink=0-1,level=40",
    )  # fmt: skip
    for words in ("Peer access", "Links", "NVLink 18", "18 links of 26.6 GB/s", "PCIe, node"):
        assert words in shown
    if topology()["nodes"]:
        assert "NUMA nodes" in shown
        assert "cuda:0, cuda:1" in shown
    assert "?" in run("-m", "onehop.cli", "info", ONEHOP_NVML_LIBRARY="off")
