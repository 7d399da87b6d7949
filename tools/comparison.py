# SPDX-License-Identifier: Apache-2.0
"""Comparisons with other tools: alternating runs, and their statistics.

Every pair of runs measures all tools once per case. The order rotates from pair to pair, so that
disturbances affect all tools alike. Printed are the medians over the pairs and the ratio of medians
with its 95 % confidence interval (bootstrap over the pairs). "Faster" means that the interval does
not contain 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1] / "bench"
TIMEOUT = 300
RESAMPLES = 10_000
SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Case:
    """One measurement, the same for all tools."""

    op: str
    size: int
    iterations: int
    window: int
    cpus: Sequence[int]


# Measures a case: microseconds (latency) or GB/s (bandwidth).
Tool = Callable[[Case], float]


def run(command: Sequence[str], **env: str) -> str:
    """Run a program and return its standard output; a failure ends the comparison."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **env}
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def compile_pingpong(
    tool: str, folder: Path, options: Sequence[str] = (), compiler: str | None = None
) -> Path:
    """Compile the program of bench/pingpong.h that measures a transport, into a folder."""
    found = compiler or shutil.which(os.environ.get("CXX", "c++"))
    if found is None:
        sys.exit("no C++ compiler: neither CXX nor c++ is there")
    program = folder / f"{tool}_pingpong"
    names = (f"pingpong_{tool}.cc", "pingpong.cc", "payload.cc")
    sources = [str(BENCH / name) for name in names]
    run([found, "-std=c++20", "-O2", "-o", str(program), *sources, *options])
    return program


def pingpong_row(
    command: Sequence[str], case: Case, env: Mapping[str, str], options: Sequence[str] = ()
) -> dict[str, Any]:
    """Run one of these programs and return its row."""
    command = [*command, case.op, "--size", str(case.size), "--iters", str(case.iterations)]
    command += ["--window", str(case.window), *options]
    if case.cpus:
        command += ["--cpus", ",".join(map(str, case.cpus))]
    row: dict[str, Any] = json.loads(run(command, **env))
    return row


def onehop_row(case: Case, env: Mapping[str, str]) -> dict[str, Any]:
    """Run `onehop bench` with these variables and return its row."""
    command = [sys.executable, "-m", "onehop.cli", "bench", case.op, "--json", "-"]
    command += ["--sizes", str(case.size), "--iters", str(case.iterations)]
    if case.op == "bandwidth":
        command += ["--window", str(case.window)]
    if case.cpus:
        command += ["--cpus", ",".join(map(str, case.cpus))]
    row: dict[str, Any] = json.loads(run(command, **env))
    return row


def figure(case: Case, row: Mapping[str, Any]) -> float:
    """Return the figure of a row that is compared."""
    return float(row["p50_us"] if case.op == "latency" else row["GBps"])


def onehop(**env: str) -> Tool:
    """Return the Tool that measures onehop with these variables."""
    return lambda case: figure(case, onehop_row(case, env))


def pingpong(command: Sequence[str], env: Mapping[str, str], options: Sequence[str] = ()) -> Tool:
    """Return the Tool that runs one of the programs of bench/pingpong.h."""
    return lambda case: figure(case, pingpong_row(command, case, env, options))


def provenance(**env: str) -> str:
    """Return the machine and the versions, as `onehop bench` reports them."""
    row = onehop_row(Case("latency", 8, 1, 1, []), env)
    return ", ".join(f"{key} {value}" for key, value in row["provenance"].items())


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
    """Run all tools in alternation; return each case's figures by tool."""
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
        if size > 0 and size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)


def markdown(op: str, found: Sequence[dict[str, object]], tools: Sequence[str]) -> str:
    """Write one table: figures are medians, ratios are the first tool / other [95 % interval]."""
    first, *others = tools
    unit = "us" if op == "latency" else "GB/s"
    better = f"{'below' if op == 'latency' else 'above'} 1: {first} is faster"
    heads = ["size", f"{first} {unit}"]
    heads += [text for name in others for text in (f"{name} {unit}", f"{first} / {name}")]
    lines = [f"{op}, {unit}; ratios {better}", "", "| " + " | ".join(heads) + " |"]
    lines.append("|" + "---|" * len(heads))
    for row in found:
        figures = row["figures"]
        size = row["size"]
        assert isinstance(figures, dict)
        assert isinstance(size, int)
        cells = [show(size), f"{statistics.median(figures[first]):.3f}"]
        for name in others:
            ratio, low, high = ratio_interval(figures[first], figures[name])
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


def iterations_for(size: int, op: str) -> int:
    """Return the operations per run."""
    volume = 2**30 if op == "latency" else 2 * 2**30
    return max(20, min(10_000, volume // max(1, size)))


def add_arguments(parser: argparse.ArgumentParser, sizes: str) -> None:
    """Add the options that all comparisons share."""
    parser.add_argument("--ops", default="latency,bandwidth")
    parser.add_argument("--sizes", default=sizes)
    parser.add_argument("--pairs", type=int, default=5, help="at least 5 for a claim")
    parser.add_argument("--iters", type=int, default=0, help="default: by the size")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--cpus", default="", metavar="A,B", help="pin the two processes")
    parser.add_argument("--json", type=Path, help="write all figures to this file")


def cases_of(arguments: argparse.Namespace, op: str) -> Iterator[Case]:
    """Yield an operation's cases; size 0 has no bandwidth."""
    cpus = [int(cpu) for cpu in arguments.cpus.split(",") if cpu]
    if len(cpus) not in (0, 2):
        sys.exit("--cpus takes two numbers")
    for size in map(parse_size, arguments.sizes.split(",")):
        if size > 0 or op == "latency":
            iterations = arguments.iters or iterations_for(size, op)
            yield Case(op, size, iterations, arguments.window, cpus)


def drive(arguments: argparse.Namespace, tools: dict[str, Tool], facts: str) -> None:
    """Compare, print the tables, and write the figures to the requested files."""
    everything = []
    print(f"{facts}; {arguments.pairs} pairs, medians; window {arguments.window}\n")
    for op in arguments.ops.split(","):
        found = compare(list(cases_of(arguments, op)), tools, arguments.pairs)
        everything += found
        print(markdown(op, found, list(tools)), flush=True)
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(row) + "\n" for row in everything))
