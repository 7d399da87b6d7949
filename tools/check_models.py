#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the models of the protocols, and that the checks find faults.

Spin searches all states of each models/*.pml, and then all states with each MUTANT_ of the model
defined. A mutant removes a step that the protocol needs, so the search must find it wrong.
Needs spin and a C compiler. The exit status is 1 if a model is wrong or a mutant is not.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MUTANT = re.compile(r"^\s*#\s*(?:ifdef|ifndef|if)\s.*?\b(MUTANT_\w+)", re.MULTILINE)
SECONDS = 60  # for each step; a search takes a few at most
MOST_DEPTH = 1_000_000


class Search(NamedTuple):
    """The result of a search."""

    fault: str  # in the protocol; empty: none
    broken: str  # in the search itself, which then proves nothing; empty: none
    states: int


def mutants_of(text: str) -> list[str]:
    """Return the mutants of a model, in order."""
    return list(dict.fromkeys(MUTANT.findall(text)))


def run(*command: str, folder: Path) -> tuple[int, str]:
    """Run a step; return its exit status and its output."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"{command[0]} was not through after {SECONDS} s"
    return done.returncode, done.stdout


def judge(output: str) -> Search:
    """Parse the output of a search."""
    states = re.search(r"^\s*([\d.e+]+) states, stored", output, re.MULTILINE)
    count = int(float(states[1])) if states else 0
    errors = re.search(r"errors: (\d+)", output)
    fault = re.search(r"^pan:\d+: (assertion violated.*|invalid end state.*)", output, re.MULTILINE)
    if fault:
        return Search(fault[1], "", count)
    if not errors or errors[1] != "0" or "search depth too small" in output:
        return Search("", output.strip(), count)
    unreached = re.findall(r"^unreached in .*\n(?!\s*\(0 of )(?:\t.*\n)+", output, re.MULTILINE)
    return Search("", "".join(unreached), count)


def search(model: Path, mutant: str | None) -> Search:
    """Search all states of a model, as it is or with a mutant."""
    define = [f"-D{mutant}"] if mutant else []
    steps = (
        ("spin", *define, "-a", str(model.resolve())),
        (os.environ.get("CC", "cc"), "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c"),
        ("./pan", f"-m{MOST_DEPTH}"),
    )
    with tempfile.TemporaryDirectory() as folder:
        for step in steps[:2]:
            status, output = run(*step, folder=Path(folder))
            if status != 0:
                return Search("", output.strip() or f"{step[0]} failed", 0)
        # The exit status does not show whether an error was found.
        _, output = run(*steps[2], folder=Path(folder))
    return judge(output)


def check(model: Path) -> list[str]:
    """Search a model and its mutants; return the failures."""
    wrong = []
    found = search(model, None)
    if found.fault or found.broken:
        wrong.append(f"{model.name}: {found.fault or found.broken}")
    else:
        print(f"{model.name}: {found.states} states, no fault")
    mutants = mutants_of(model.read_text(encoding="utf-8"))
    if not mutants:
        wrong.append(f"{model.name}: no MUTANT_ shows that a fault would be found")
    for mutant in mutants:
        found = search(model, mutant)
        if found.fault:
            print(f"{model.name}: {mutant}: {found.fault}")
        else:
            reason = found.broken or f"{found.states} states, no fault"
            wrong.append(f"{model.name}: {mutant} was not found wrong: {reason}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Check all models; return 1 if any check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(__file__).resolve().parent.parent / "models",
    )
    folder = parser.parse_args(arguments).folder
    models = sorted(folder.glob("*.pml"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [text for texts in pool.map(check, models) for text in texts]
    if not models:
        wrong.append(f"{folder}: no models")
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
