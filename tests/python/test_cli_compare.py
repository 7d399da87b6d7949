# SPDX-License-Identifier: Apache-2.0
"""tools/compare_host.py: its statistics, and a comparison with a stand-in for ucx_perftest."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "compare_host.py"

# Answers as ucx_perftest does with -f -v: 2 us, 1,000 MiB a second.
STAND_IN = """\
#!/bin/sh
case "$1" in
127.0.0.1) echo "iterations,p50,avg,overall,bw,overall_bw,mr,overall_mr"
           echo "20,2.000,2.0,2.0,900.00,1000.00,1,1" ;;
*) echo "Waiting for connection..." ;;
esac
"""


@pytest.fixture(scope="module")
def script():
    # It finds what it shares with its sibling beside itself.
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("compare_host", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare_host"] = module
    spec.loader.exec_module(module)
    sys.path.remove(str(SCRIPT.parent))
    return importlib.import_module("comparison")


def test_interval_of_clear_and_unclear_ratios(script) -> None:
    ratio, low, high = script.ratio_interval([1.0, 1.1, 1.0, 0.9, 1.0], [2.0, 2.1, 2.0, 1.9, 2.0])
    assert ratio == 0.5
    assert 0.4 < low <= ratio <= high < 0.6
    ratio, low, high = script.ratio_interval([1, 3, 1, 3, 2], [3, 1, 2, 1, 3])
    assert low < 1 < high


def test_table(script) -> None:
    found = [{"op": "latency", "size": 1024, "window": 1,
              "figures": {"onehop": [1.0] * 5, "UCX": [2.0] * 5}}]  # fmt: skip
    page = script.markdown("latency", found, ["onehop", "UCX"])
    assert "| 1K | 1.000 | 2.000 | 0.50 [0.50, 0.50] |" in page


def test_comparison(tmp_path) -> None:
    perftest = tmp_path / "ucx_perftest"
    perftest.write_text(STAND_IN)
    perftest.chmod(0o755)
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--ucx-perftest", str(perftest), "--pairs", "2",
         "--iters", "20", "--sizes", "8", "--json", str(figures)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    latency, bandwidth = (json.loads(line) for line in figures.read_text().splitlines())
    assert latency["figures"]["UCX"] == [2.0, 2.0]
    assert bandwidth["figures"]["UCX"] == [1000 * 2**20 / 1e9] * 2
    assert len(latency["figures"]["onehop"]) == 2
    assert "| size | onehop us | UCX us | onehop / UCX |" in done.stdout


def test_nothing_to_compare_with() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "nothing to compare with" in done.stderr
