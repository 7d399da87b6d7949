#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run GoogleTest's tests on real GPUs, in slices:  tools/gpu_tests.py BINARY FILTER FOLDER SECONDS.

Each slice is a process with some tests and a JSON file in FOLDER, so that slices that have ended by
the deadline are recorded; FOLDER/left.txt has a filter of the remaining tests, for the next run.
SLICES (8) slices run concurrently; those of the worker run first, one at a time: the worker is not
started while other processes use the GPU.
"""

import concurrent.futures
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

TESTS = 10  # per slice
MOST_SECONDS = 120  # limit of a slice
ALONE = "GpuWorker"


def tests_of(binary: str, wanted: str) -> list[str]:
    """Return the full names of the tests that a filter matches."""
    listed = subprocess.run(
        [binary, "--gtest_list_tests", f"--gtest_filter={wanted}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names, suite = [], ""
    for line in listed.stdout.splitlines():
        name = line.partition("#")[0].rstrip()
        if name.startswith(" "):
            names.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return names


def slices(names: list[str]) -> list[list[str]]:
    """Divide the tests into slices."""
    return [names[first : first + TESTS] for first in range(0, len(names), TESTS)]


def main() -> int:
    """Run the slices; return 1 if a test failed or is left."""
    binary, wanted, folder, seconds = sys.argv[1:]
    deadline = time.monotonic() + float(seconds)
    results = pathlib.Path(folder)
    results.mkdir(parents=True, exist_ok=True)
    os.environ["REAL_GPUS"] = "1"  # some links are only of the fake driver
    names = tests_of(binary, wanted)
    alone = [name for name in names if ALONE in name]
    others = [name for name in names if ALONE not in name]
    numbers = itertools.count()
    left: list[str] = []
    failed: list[int] = []

    def run(some: list[str]) -> None:
        number = next(numbers)
        if (seconds_left := deadline - time.monotonic()) < 3:
            left.extend(some)
            return
        command = [
            binary, "--gtest_brief=1", "--gtest_filter=" + ":".join(some),
            f"--gtest_output=json:{results}/{number}.json",
        ]  # fmt: skip
        # A session of its own, so that the test's processes end with it.
        running = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        try:
            said, _ = running.communicate(timeout=min(seconds_left, MOST_SECONDS))
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            said, _ = running.communicate()
            left.extend(some)
            print(f"---- slice {number} has not ended:", *some, f"\n{said}")
            return
        if running.returncode != 0:
            failed.append(number)
            print(f"---- slice {number}: {running.returncode}\n{said}")
            if not (results / f"{number}.json").exists():
                left.extend(some)
                print("it died at one of:", *some)

    for some in slices(alone):
        run(some)
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("SLICES", "8"))) as pool:
        list(pool.map(run, slices(others)))
    (results / "left.txt").write_text(":".join(left))
    print(f"{len(names) - len(left)} of {len(names)} tests ran; {len(left)} left")
    return 1 if failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
