# SPDX-License-Identifier: Apache-2.0
"""The check of the layers refuses each kind of offence, and passes on the tree as it is."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "check_layers.py"
LICENSE = "// SPDX-License-Identifier: Apache-2.0\n"

spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
assert spec
assert spec.loader
check_layers = importlib.util.module_from_spec(spec)
sys.modules["check_layers"] = check_layers
spec.loader.exec_module(check_layers)


def put(root: Path, path: str, text: str, *, licence: str = LICENSE) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(licence + text)


def offences(root: Path) -> list[str]:
    return [f"{o.path.as_posix()}:{o.line}: {o.what}" for o in check_layers.check_tree(root)]


def includes(*names: str) -> str:
    return "".join(f'#include "{name}"\n' for name in names)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree in which everything is allowed."""
    put(tmp_path, "include/onehop/types.h", "#include <stdint.h>\n" + includes("onehop/status.h"))
    put(tmp_path, "include/onehop/onehop.hpp", "#include <memory>\n" + includes("onehop/types.h"))
    put(tmp_path, "src/base/log.cc", "#include <memory>\n" + includes("base/log.h"))
    put(tmp_path, "src/platform/os/net.cc", includes("base/log.h", "platform/os/net.h"))
    put(tmp_path, "src/memory/heap.cc", includes("platform/os/net.h", "base/log.h"))
    put(tmp_path, "src/transport/frame.h", includes("memory/heap.h", "onehop/types.h"))
    put(
        tmp_path, "src/transport/shm/ring.cc", includes("transport/frame.h", "transport/shm/ring.h")
    )
    put(tmp_path, "src/control/hello.cc", includes("memory/heap.h", "control/hello.h"))
    put(
        tmp_path,
        "src/endpoint/peer.cc",
        includes("transport/shm/ring.h", "transport/socket/x.h", "control/hello.h"),
    )
    put(tmp_path, "src/kernels/image.cc", includes("base/log.h"))
    put(tmp_path, "src/capi/peer.cc", includes("endpoint/peer.h", "kernels/image.h"))
    put(tmp_path, "tests/unit/peer_test.cc", includes("endpoint/peer.h", "unit/support.h"))
    put(
        tmp_path,
        "bench/side.cc",
        "#include <memory>\n" + includes("onehop/onehop.hpp", "side.h", "platform/cuda/abi.h"),
    )
    put(tmp_path, "tools/check.py", "print()\n", licence="# " + LICENSE[3:])
    return tmp_path


def test_what_is_allowed_passes(tree: Path) -> None:
    assert offences(tree) == []


@pytest.mark.parametrize(
    ("path", "included", "text"),
    [
        ("src/base/a.cc", "platform/os/net.h", "base must not see platform"),
        ("src/base/a.cc", "endpoint/peer.h", "base must not see endpoint"),
        ("src/platform/os/a.cc", "memory/heap.h", "platform must not see memory"),
        ("src/memory/a.cc", "transport/frame.h", "memory must not see transport"),
        ("src/memory/a.cc", "control/hello.h", "memory must not see control"),
        ("src/transport/a.cc", "control/hello.h", "transport must not see control"),
        ("src/control/a.cc", "transport/frame.h", "control must not see transport"),
        ("src/control/a.cc", "endpoint/peer.h", "control must not see endpoint"),
        ("src/endpoint/a.cc", "capi/handles.h", "endpoint must not see capi"),
        ("src/endpoint/a.cc", "stream/calls.h", "endpoint must not see stream"),
        ("src/endpoint/a.cc", "calls/probes.h", "endpoint must not see calls"),
        ("src/stream/a.cc", "communicator/communicator.h", "stream must not see communicator"),
        ("src/lane/a.cc", "message/sender.h", "lane must not see message"),
        ("src/one_sided/a.cc", "message/sender.h", "one_sided must not see message"),
        ("src/path/direct/a.cc", "one_sided/one_sided.h", "path must not see one_sided"),
        ("src/link/a.cc", "path/selection.h", "link must not see path"),
        ("src/device/a.cc", "link/pair.h", "device must not see link"),
        ("src/path/direct/a.cc", "path/staging/a.h", "path must not see each other"),
        ("src/kernels/a.cc", "platform/os/net.h", "kernels must not see platform"),
        ("src/memory/a.cc", "kernels/image.h", "memory must not see kernels"),
        ("src/transport/shm/a.cc", "transport/socket/x.h", "transport must not see each other"),
        ("src/transport/a.h", "transport/shm/ring.h", "transport must not see each other"),
        ("src/base/a.cc", "onehop/onehop.hpp", "is for users"),
        ("src/base/a.cc", "../endpoint/peer.h", "leaves its folder"),
        ("src/news/a.cc", "base/log.h", "src/news is no layer"),
        ("include/onehop/a.h", "base/log.h", "must not see base/log.h"),
        ("include/onehop/a.hpp", "../src/base/log.h", "must not see"),
        ("bench/a.cc", "endpoint/peer.h", "bench sees include/onehop only"),
        ("bench/a.cc", "platform/cuda/driver.h", "bench sees include/onehop only"),
        ("python/src/a.cc", "platform/cuda/abi.h", "python sees include/onehop only"),
        ("bench/a.cc", "../src/endpoint/peer.h", "bench sees include/onehop only"),
        ("python/src/a.cc", "capi/handles.h", "python sees include/onehop only"),
        ("tools/a.cc", "base/log.h", "tools sees include/onehop only"),
    ],
)
def test_an_include_that_points_up_or_sideways_is_refused(
    tree: Path, path: str, included: str, text: str
) -> None:
    put(tree, path, "\n" + includes(included))
    (offence,) = offences(tree)
    assert offence.startswith(f"{path}:3: ")
    assert text in offence


@pytest.mark.parametrize("line", ["  #  include <endpoint/peer.h>", "#include<endpoint/peer.h>"])
def test_an_include_is_seen_however_it_is_written(tree: Path, line: str) -> None:
    put(tree, "src/base/a.cc", line + "\n")
    assert len(offences(tree)) == 1


@pytest.mark.parametrize("top", ["include/onehop/a.hpp", "src/base/a.cc", "bench/a.cc"])
@pytest.mark.parametrize("header", ["fstream", "iostream", "locale", "regex"])
def test_streams_are_refused_in_what_python_loads(tree: Path, top: str, header: str) -> None:
    put(tree, top, f"#include <{header}>\n")
    (offence,) = offences(tree)
    assert f"{top}:2: <{header}>" in offence


def test_tests_may_use_streams(tree: Path) -> None:
    put(tree, "tests/unit/a.cc", "#include <fstream>\n")
    assert offences(tree) == []


def test_an_include_in_a_comment_is_none(tree: Path) -> None:
    put(tree, "src/base/a.cc", '// #include "endpoint/peer.h"\n')
    assert offences(tree) == []


@pytest.mark.parametrize(
    ("path", "most"),
    [("src/base/a.cc", 600), ("tests/unit/a.cc", 600), ("include/onehop/a.h", 250)],
)
def test_a_file_that_is_too_long_is_refused(tree: Path, path: str, most: int) -> None:
    put(tree, path, "\n" * (most - 1))
    assert offences(tree) == []
    put(tree, path, "\n" * most)
    (offence,) = offences(tree)
    assert offence.startswith(f"{path}:{most + 1}: {most + 1} lines")


def test_the_device_header_may_be_long(tree: Path) -> None:
    put(tree, "include/onehop/device.cuh", "\n" * 1000)
    assert offences(tree) == []


@pytest.mark.parametrize(
    "path", ["src/base/a.cc", "include/onehop/a.h", "tests/tools/a.py", "src/CMakeLists.txt"]
)
def test_a_file_without_a_licence_is_refused(tree: Path, path: str) -> None:
    put(tree, path, "\n" * 6 + LICENSE, licence="")
    (offence,) = offences(tree)
    assert offence == f"{path}:1: the line 'SPDX-License-Identifier: Apache-2.0' is missing"


def test_what_is_not_ours_is_left_alone(tree: Path) -> None:
    for path in ("build-x/a.cc", "src/.hidden/a.cc", "tests/__pycache__/a.py", "docs/a.md"):
        put(tree, path, "no licence", licence="")
    put(tree, "tests/data.txt", "no licence", licence="")
    put(tree, "tests/empty.py", "", licence="")
    assert offences(tree) == []


def run(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, root], capture_output=True, text=True, check=False
    )


def test_the_exit_status_tells(tree: Path) -> None:
    assert run(tree).returncode == 0
    put(tree, "src/base/a.cc", includes("capi/handles.h", "endpoint/peer.h"))
    done = run(tree)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "src/base/a.cc:2: base must not see capi: it includes capi/handles.h",
        "src/base/a.cc:3: base must not see endpoint: it includes endpoint/peer.h",
    ]
    assert "2 offences" in done.stderr


def test_the_tree_as_it_is_passes() -> None:
    done = run(ROOT)
    assert done.stdout == ""
    assert done.returncode == 0
