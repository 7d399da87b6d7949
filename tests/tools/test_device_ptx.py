# SPDX-License-Identifier: Apache-2.0
"""What orders memory in the protocol's device code is in the PTX, and nothing more than that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("device_primitives.cu")
BATCH = ROOT / "src" / "kernels" / "batch.cu"
WORKER = ROOT / "src" / "kernels" / "worker.cu"

LANE = "ld.acquire.sys.global.b128"
LINE = "st.relaxed.sys.global.v2.u64"
STORE = "st.relaxed.sys.global.u64"
DONE = ["fence.acq_rel.sys", STORE, STORE]

# The kernels, and the accesses and fences of each that are not weak, in order.
EXPECTED = {
    "load_relaxed": ["ld.relaxed.sys.global.u64"],
    "store_relaxed": [STORE],
    "publish_word": ["st.release.sys.global.u64"],
    "poll_word": ["ld.acquire.sys.global.u64"],
    "write_one_line": [LINE],
    "read_one_line": ["ld.relaxed.sys.global.v2.u64"],
    "write_one_message": [LINE, LINE],
    "read_one_message": ["ld.relaxed.sys.global.v2.u64"],
    "read_one_length": ["ld.relaxed.sys.global.v2.u64"],
    "write_one_command": ["ld.acquire.sys.global.u64", *["st.release.sys.global.b128"] * 4],
    "read_one_lane": [LANE],
    "read_one_command": [LANE] * 4,
    "finish_one_command": DONE,
    "carry_out": [LANE, *DONE],
}

ENTRY = re.compile(r"\.visible \.entry (\w+)\((.*?)^\}", re.MULTILINE | re.DOTALL)
ACCESS = re.compile(
    r"^\s*(?:@\S+\s+)?\{?\s*((?:ld|st|atom|red|fence|membar)\.[\w.:]+)", re.MULTILINE
)
STRONG = re.compile(r"\.(?:relaxed|acquire|release|acq_rel|volatile|mmio|sc)\b|^membar|^fence")


def find_nvcc() -> str | None:
    """Find nvcc as cmake/FindNvcc.cmake does: ONEHOP_NVCC, the wheels, PATH."""
    wanted = os.environ.get("ONEHOP_NVCC")
    if wanted and wanted != "system":
        return wanted
    wheels = (path for place in sys.path for path in Path(place).glob("nvidia/cu1*/bin/nvcc"))
    first = None if wanted else next(wheels, None)
    return str(first) if first else shutil.which("nvcc", path=search_path())


def search_path() -> str:
    return os.environ.get("PATH", "") + os.pathsep + "/usr/local/cuda/bin"


NVCC = find_nvcc()
pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc: ONEHOP_NVCC, its wheels, PATH")


def compile_to(kind: str, target: Path, source: Path = SOURCE) -> None:
    folders = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}"]
    command = [NVCC, "-std=c++20", "-arch=sm_80", *folders, kind]
    done = subprocess.run(
        [*command, "-Werror=all-warnings", "-o", target, source],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """All accesses and fences of each kernel."""
    ptx = tmp_path_factory.mktemp("ptx") / "primitives.ptx"
    compile_to("--ptx", ptx)
    return {name: ACCESS.findall(body) for name, body in ENTRY.findall(ptx.read_text())}


def test_every_kernel_is_looked_at(kernels: dict[str, list[str]]) -> None:
    assert set(kernels) == set(EXPECTED)
    assert set(re.findall(r"^KERNEL\((\w+)\)", SOURCE.read_text(), re.MULTILINE)) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_order_is_in_the_instructions(kernels: dict[str, list[str]], name: str) -> None:
    assert [access for access in kernels[name] if STRONG.search(access)] == EXPECTED[name]


def test_a_copy_stays_between_the_lane_and_the_fence(kernels: dict[str, list[str]]) -> None:
    accesses = [access for access in kernels["carry_out"] if not access.startswith("ld.param")]
    assert accesses == [LANE, "ld.global.u64", "st.global.u64", *DONE]


def test_a_batch_is_counted_behind_its_bytes_and_the_word_behind_all(tmp_path: Path) -> None:
    ptx = tmp_path / "batch.ptx"
    compile_to("--ptx", ptx, BATCH)
    ((name, body),) = ENTRY.findall(ptx.read_text())
    assert name == "onehop_batch"
    order = [access for access in ACCESS.findall(body) if not access.startswith("ld.param")]
    last = ["membar.sys", "atom.global.add.u32", "st.global.u32", "membar.sys"]
    assert order[-5:] == [*last, "st.volatile.global.u64"]
    assert not [access for access in order[:-5] if STRONG.search(access)]


def test_the_worker_fences_before_each_word_and_before_its_last_look(tmp_path: Path) -> None:
    ptx = tmp_path / "worker.ptx"
    compile_to("--ptx", ptx, WORKER)
    ((name, body),) = ENTRY.findall(ptx.read_text())
    assert name == "onehop_worker"
    order = [access for access in ACCESS.findall(body) if STRONG.search(access)]
    say = "st.release.sys.global.u64"
    assert order[:2] == ["ld.acquire.sys.global.u64", say]  # where to begin; HERE
    assert order[-2:] == [say, say]  # how long it stayed; GONE
    assert set(order) == {order[0], say, LANE, *DONE, "fence.sc.sys"}
    fences = [i for i, access in enumerate(order) if access == DONE[0]]
    assert fences
    # Its done word need not be there.
    assert all(order[i : i + 3] == DONE for i in fences)
    assert order.count(STORE) == 2 * len(fences)
    leaving = [i for i, access in enumerate(order) if access == "fence.sc.sys"]
    assert leaving
    assert all(order[i - 1] == say for i in leaving)


def test_the_oldest_gpu_has_the_instructions(tmp_path: Path) -> None:
    compile_to("--cubin", tmp_path / "primitives.cubin")
