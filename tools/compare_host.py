#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare onehop with UCX and MPI on this host: two processes, host memory, runs in turn.

Every pair runs all tools once per size, in an order that turns round from pair to pair, so that
what else the machine does hits all alike. Printed are the medians over the pairs and the ratio of
medians with its 95 % confidence interval (bootstrap over the pairs). "Faster" is an interval that
does not contain 1.

ucx_perftest uses one buffer for all messages in flight, onehop and the MPI program one for each;
all use private memory. UCX runs with UCX_TLS=posix,cma,self unless the environment says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 300
RESAMPLES = 10_000
MIB = 2**20
SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Case:
    """One measurement; all tools get the same."""

    op: str
    size: int
    iterations: int
    window: int
    cpus: Sequence[int]


# Gives a case's figure: microseconds (latency) or GB/s (bandwidth).
Tool = Callable[[Case], float]


def run(command: Sequence[str], **env: str) -> str:
    """Run a program and return its standard output; its errors end the comparison."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **env}
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def onehop_row(case: Case) -> dict[str, Any]:
    """Return the row of `onehop bench`."""
    command = [sys.executable, "-m", "onehop.cli", "bench", case.op, "--json", "-"]
    command += ["--sizes", str(case.size), "--iters", str(case.iterations)]
    if case.op == "bandwidth":
        command += ["--window", str(case.window)]
    if case.cpus:
        command += ["--cpus", ",".join(map(str, case.cpus))]
    row: dict[str, Any] = json.loads(run(command))
    return row


def onehop(case: Case) -> float:
    """Measure onehop."""
    row = onehop_row(case)
    return float(row["p50_us"] if case.op == "latency" else row["GBps"])


def ucx_version(perftest: Path) -> str:
    """Return the version that lies beside ucx_perftest."""
    program = perftest.resolve().parent / "ucx_info"
    if not program.exists():
        return "unknown"
    words = run([str(program), "-v"], **ucx_environment(perftest)).split()
    return words[words.index("version:") + 1] if "version:" in words else "unknown"


def ucx_environment(perftest: Path) -> dict[str, str]:
    """Return what UCX's programs need; those of a wheel do not find their libraries themselves."""
    library = perftest.resolve().parent.parent / "lib"
    env = {"UCX_TLS": os.environ.get("UCX_TLS", "posix,cma,self")}
    if library.is_dir():
        env["LD_LIBRARY_PATH"] = f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return env


def ucx(perftest: Path) -> Tool:
    """Return how to measure UCX."""
    env = ucx_environment(perftest)

    def measure(case: Case) -> float:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        test = "tag_lat" if case.op == "latency" else "tag_bw"
        command = [str(perftest), "-p", str(port), "-t", test, "-s", str(case.size), "-f", "-v"]
        command += ["-n", str(case.iterations), "-w", str(case.iterations // 10 + 2)]
        if case.op == "bandwidth":
            command += ["-O", str(case.window)]
        pinned = [["-c", str(cpu)] for cpu in case.cpus] or [[], []]
        server = subprocess.Popen(
            # Line by line, so that its word that it waits for the client comes.
            ["stdbuf", "-oL", *command, *pinned[1]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **env},
        )
        try:
            assert server.stdout
            for line in server.stdout:
                if "Waiting for connection" in line:
                    break
            out = run([command[0], "127.0.0.1", *command[1:], *pinned[0]], **env)
            server.communicate(timeout=TIMEOUT)
        finally:
            server.kill()
            server.wait()
        values = out.strip().splitlines()[-1].split(",")
        # iterations, p50, average, overall latency, average, overall bandwidth in MiB/s, ...
        return float(values[1]) if case.op == "latency" else float(values[5]) * MIB / 1e9

    return measure


def mpi(folder: Path) -> Tool | None:
    """Return how to measure MPI, if there is a compiler for it."""
    compiler, launcher = shutil.which("mpicc"), shutil.which("mpiexec")
    if not compiler or not launcher:
        return None
    program = folder / "mpi_pingpong"
    run([compiler, "-O2", "-o", str(program), str(ROOT / "bench" / "mpi_pingpong.c")])

    def measure(case: Case) -> float:
        command = [launcher, "-n", "2"]
        if case.cpus:
            command += ["-bind-to", "user:" + ",".join(map(str, case.cpus))]
        command += [str(program), case.op, str(case.size), str(case.iterations), str(case.window)]
        return float(run(command).split()[-1])

    return measure


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of medians and its 95 % interval, by resampling the pairs."""
    rng = random.Random(1)
    pairs = list(zip(ours, theirs, strict=True))
    ratios = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(pairs, k=len(pairs))
        ratios.append(
            statistics.median(a for a, _ in drawn) / statistics.median(b for _, b in drawn)
        )
    ratios.sort()
    low, high = ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES) - 1]
    return statistics.median(ours) / statistics.median(theirs), low, high


def compare(cases: Sequence[Case], tools: dict[str, Tool], pairs: int) -> list[dict[str, object]]:
    """Run all tools in turn; return each case's figures by tool."""
    found: list[dict[str, object]] = []
    for case in cases:
        figures: dict[str, list[float]] = {name: [] for name in tools}
        for pair in range(pairs):
            order = list(tools) if pair % 2 == 0 else list(reversed(tools))
            for name in order:
                print(f"{case.op} {case.size} B, pair {pair + 1}: {name} ", file=sys.stderr)
                figures[name].append(tools[name](case))
        found.append({"op": case.op, "size": case.size, "window": case.window, "figures": figures})
    return found


def show(size: int) -> str:
    """Write a size with its suffix."""
    for suffix, factor in reversed(SUFFIXES.items()):
        if size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)


def markdown(op: str, found: Sequence[dict[str, object]], tools: Sequence[str]) -> str:
    """Write one table: figures are medians, ratios are onehop / other [95 % interval]."""
    unit = "us" if op == "latency" else "GB/s"
    better = "below 1: onehop is faster" if op == "latency" else "above 1: onehop is faster"
    others = [name for name in tools if name != "onehop"]
    heads = ["size", f"onehop {unit}"]
    heads += [text for name in others for text in (f"{name} {unit}", f"onehop / {name}")]
    lines = [f"{op}, {unit}; ratios {better}", "", "| " + " | ".join(heads) + " |"]
    lines.append("|" + "---|" * len(heads))
    for row in found:
        figures = row["figures"]
        size = row["size"]
        assert isinstance(figures, dict)
        assert isinstance(size, int)
        cells = [show(size), f"{statistics.median(figures['onehop']):.3f}"]
        for name in others:
            ratio, low, high = ratio_interval(figures["onehop"], figures[name])
            cells += [
                f"{statistics.median(figures[name]):.3f}",
                f"{ratio:.2f} [{low:.2f}, {high:.2f}]",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parse_size(text: str) -> int:
    """Parse 64K."""
    text = text.strip()
    factor = SUFFIXES.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ucx-perftest", type=Path, metavar="PATH")
    parser.add_argument("--mpi", action="store_true", help="also MPI, compiled with mpicc")
    parser.add_argument("--ops", default="latency,bandwidth")
    parser.add_argument("--sizes", default="8,1K,8K,64K,1M,64M")
    parser.add_argument("--pairs", type=int, default=5, help="at least 5 for a claim")
    parser.add_argument("--iters", type=int, default=0, help="default: by the size")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--cpus", default="", metavar="A,B", help="pin the two processes")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


def iterations_for(size: int, op: str) -> int:
    """Return how many operations a run takes."""
    volume = 2**30 if op == "latency" else 2 * 2**30
    return max(20, min(10_000, volume // size))


def main() -> None:
    """Run the comparison."""
    arguments = parse_arguments()
    cpus = [int(cpu) for cpu in arguments.cpus.split(",") if cpu]
    if len(cpus) not in (0, 2):
        sys.exit("--cpus takes two numbers")
    sizes = [parse_size(size) for size in arguments.sizes.split(",")]
    everything = []
    with tempfile.TemporaryDirectory() as folder:
        tools: dict[str, Tool] = {"onehop": onehop}
        if arguments.ucx_perftest:
            tools["UCX"] = ucx(arguments.ucx_perftest)
        if arguments.mpi:
            found_mpi = mpi(Path(folder))
            if found_mpi is None:
                sys.exit("--mpi needs mpicc and mpiexec")
            tools["MPI"] = found_mpi
        if len(tools) == 1:
            sys.exit("nothing to compare with: give --ucx-perftest PATH or --mpi")
        row = onehop_row(Case("latency", 8, 1, 1, []))
        facts = ", ".join(f"{key} {value}" for key, value in row["provenance"].items())
        if arguments.ucx_perftest:
            facts += f", UCX {ucx_version(arguments.ucx_perftest)}"
        print(f"{facts}; {arguments.pairs} pairs, medians; window {arguments.window}\n")
        for op in arguments.ops.split(","):
            cases = [
                Case(op, size, arguments.iters or iterations_for(size, op), arguments.window, cpus)
                for size in sizes
            ]
            found = compare(cases, tools, arguments.pairs)
            everything += found
            print(markdown(op, found, list(tools)), flush=True)
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(row) + "\n" for row in everything))


if __name__ == "__main__":
    main()
