# SPDX-License-Identifier: Apache-2.0
"""`onehop bench --plot` and `onehop bench plot`: what pictures show, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import struct
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from command import chosen, run_onehop
from test_cli_bench import COMMAND, LONG, wait_for

# Long enough for a test to fail if anything is measured before a refusal: no row ends in time.
ENDLESS = ("--sizes", "64M", "--iters", "1000000")

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def row(size, p50=1.0, **more):
    known = {"op": "latency", "api": "c", "mode": "sendrecv", "memory": "host", "path": "shm"}
    values = {"size": size, "p50_us": p50, "p99_us": 2 * p50, "GBps": size / p50 / 1e3, "wrong": 0}
    about = {"machine": "here", "onehop": "0.1.0", "date": "2026-01-02 03:04 UTC"}
    return {**known, **values, "provenance": about, **more}


def write(path: Path, *rows) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(path)


def texts(svg: Path) -> list[str]:
    """Return the texts of an SVG, which are texts and no outlines."""
    name = "{http://www.w3.org/2000/svg}text"
    return ["".join(one.itertext()) for one in ET.parse(svg).iter(name)]


@pytest.fixture
def plot(tmp_path):
    """Draw rows, of a file each; return the picture's texts."""

    def draw(*files) -> list[str]:
        names = [write(tmp_path / f"{n}.json", *rows) for n, rows in enumerate(files)]
        target = tmp_path / "picture.svg"
        done = run_onehop("bench", "plot", *names, "-o", str(target))
        assert done.returncode == 0, done.stderr
        return texts(target)

    return draw


# ---- Pictures of a run


@needs_matplotlib
def test_latency(tmp_path) -> None:
    target = tmp_path / "latency.svg"
    done = run_onehop(
        "bench", "latency", *chosen("sendrecv", "put"), "--sizes", "8,64K", "--iters", "20",
        "--vs", "memcpy", "--json", "-", "--plot", str(target),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    known = json.loads(done.stdout.splitlines()[0])["provenance"]
    found = texts(target)
    assert {"sendrecv, c (inline, shm)", "put, c (shm)", "memcpy, floor"} <= set(found)
    assert {"8", "64K", "size, bytes", "time, us (solid: p50, dashed: p99)"} <= set(found)
    title = " ".join(found)
    for fact in ("date", "machine", "onehop", "kernel"):
        assert f"{fact} {known[fact]}" in title
    assert "onehop bench latency: host memory" in found


@needs_matplotlib
def test_bandwidth_as_png(tmp_path) -> None:
    target = tmp_path / "rate.png"
    done = run_onehop(
        "bench", "bandwidth", "--sizes", "8,4K", "--iters", "20", "--plot", str(target)
    )
    assert done.returncode == 0, done.stderr
    content = target.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, 700 < height < 900) == (1125, True)


@needs_matplotlib
@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (("batch", "--sizes", "1,4K", "--blocks", "9", *chosen("put", "bulk")),
         "bulk (inline, shm)"),
        (("inline", "--limits", "0,64", "--sizes", "8,64", "--rounds", "2", "--transport", "auto"),
         "sendrecv, limit 0 (shm)"),
        (("latency", "--sizes", "0,8", "--api", "python"), "0"),
    ],
)  # fmt: skip
def test_other_benchmarks(arguments: tuple[str, ...], seen: str, tmp_path) -> None:
    target = tmp_path / "picture.svg"
    done = run_onehop("bench", *arguments, "--iters", "5", "--plot", str(target))
    assert done.returncode == 0, done.stderr
    found = texts(target)
    assert seen in found
    assert f"onehop bench {arguments[0]}: host memory" in found


@needs_matplotlib
def test_wrong_bytes_are_not_drawn(tmp_path) -> None:
    target = tmp_path / "picture.svg"
    done = run_onehop(
        "bench", "latency", "--sizes", "8", "--iters", "5", "--plot", str(target),
        OH_BENCH_CORRUPT="1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr
    assert not target.read_bytes()


@needs_matplotlib
def test_ctrl_c_leaves_the_picture_of_the_rows(tmp_path) -> None:
    target, lines = tmp_path / "picture.svg", tmp_path / "rows.json"
    process = subprocess.Popen(
        [*COMMAND, *LONG, "--json", str(lines), "--plot", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(lambda: lines.exists() and lines.read_text().count("\n") == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert {"sendrecv (inline, shm)", "8", "1K"} <= set(texts(target))


# ---- Refused before anything is measured


@needs_matplotlib
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("picture.doc", "matplotlib does not draw '.doc'"),
        ("picture", "matplotlib does not draw ''"),
        ("none/picture.svg", "No such file or directory"),
        ("folder.svg", "Is a directory"),
    ],
)
def test_files_that_cannot_be_drawn(name: str, text: str, tmp_path) -> None:
    (tmp_path / "folder.svg").mkdir()
    done = run_onehop("bench", "latency", *ENDLESS, "--plot", str(tmp_path / name))
    assert done.returncode == 2
    assert "--plot" in done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


@pytest.mark.parametrize("command", [("latency", *ENDLESS, "--plot"), ("plot", __file__, "-o")])
def test_without_matplotlib(command: tuple[str, ...], tmp_path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no matplotlib here')\n")
    folders = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    target = tmp_path / "picture.svg"
    done = run_onehop("bench", *command, str(target), PYTHONPATH=folders)
    assert done.returncode == 2
    assert "pip install onehop[plot]" in done.stderr
    assert not target.exists()


@pytest.mark.parametrize("name", ["setup", "peers", "matrix", "nixl", "weights"])
def test_benchmarks_without_a_picture(name: str) -> None:
    done = run_onehop("bench", name, "--plot", "picture.svg")
    assert done.returncode == 2
    assert "there is no picture of this benchmark: its" in done.stderr
    assert "--plot" not in run_onehop("bench", name, "--help").stdout


# ---- Pictures of files


@needs_matplotlib
def test_lines_are_named_by_what_differs(plot) -> None:
    assert {"sendrecv (inline, shm)"} <= set(plot([row(64), row(8, path="inline")]))
    rows = [row(8), row(8, buffers="shared"), row(8, memory="cuda", devices="0,1")]
    assert {
        "sendrecv, host memory (shm)",
        "sendrecv, host memory, shared buffers (shm)",
        "sendrecv, cuda memory, devices 0,1 (shm)",
        "onehop bench latency: host, cuda memory",
    } <= set(plot(rows))


@needs_matplotlib
def test_windows_and_paths_divide_a_line_where_they_differ_at_a_size(plot) -> None:
    rate = {"op": "bandwidth", "window": 16}
    falling = [row(8, **rate), row(64, **{**rate, "window": 4})]
    assert "sendrecv (shm)" in plot(falling)
    found = plot([*falling, row(64, **rate), row(8, **{**rate, "window": 4})])
    assert {"sendrecv, window 16 (shm)", "sendrecv, window 4 (shm)"} <= set(found)
    found = plot([row(8), row(64), row(8, path="ucx"), row(64, path="ucx")])
    assert {"sendrecv (shm)", "sendrecv (ucx)"} <= set(found)


@needs_matplotlib
def test_files_are_told_apart(plot) -> None:
    found = plot([row(8)], [row(8, 2.0, provenance={"machine": "there"})])
    for number, machine in enumerate(("here", "there")):
        assert any(f"{number}.json (shm)" in text for text in found)
        assert any(f"{number}.json | machine {machine}" in text for text in found)


@needs_matplotlib
def test_torch_shows_what_has_a_size(plot) -> None:
    torch = {"op": "torch", "api": "gloo", "path": "none"}
    found = plot([row(0, mode="init", **{**torch, "GBps": 0.0}), row(8, mode="batch", **torch)])
    assert "batch" in found
    assert not any("init" in text for text in found)
    assert {"time, us (solid: p50, dashed: p99)", "bandwidth, GB/s"} <= set(found)


@needs_matplotlib
def test_texts_are_no_formulas_and_no_markup(plot) -> None:
    told = {"machine": "$x^$ <b> & \\frac", "cpu": "a_b"}
    title = " ".join(plot([row(8, mode="$\\bad$", provenance=told)]))
    assert "machine $x^$ <b> & \\frac | cpu a_b" in title
    assert "$\\bad$ (shm)" in title


@needs_matplotlib
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row(8, op="setup")], "there is no row to draw"),
        ([{"op": "latency", "p50_us": 1.0}], "there is no row to draw"),
        ([row(8, wrong=1)], "line 1: 1 bytes were wrong"),
        ([{"what": "pull"}], "has no row with a p50_us"),
    ],
)
def test_files_without_a_row_to_draw(rows, text: str, tmp_path) -> None:
    file = write(tmp_path / "rows.json", *rows)
    done = run_onehop("bench", "plot", file, "-o", str(tmp_path / "picture.svg"))
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr
