#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print a table of what ran on real GPUs:  tools/gpu_test_table.py FOLDER.

FOLDER has GoogleTest's JSON files of a run with REAL_GPUS=1. The table has a row per suite: how
many of its tests passed on the machine's own GPUs, on the fake driver, and without a device; how
many were skipped; and the names of those that failed, or did not end.
"""

import collections
import json
import pathlib
import sys

COLUMNS = ("real", "fake", "no device", "skipped", "failed")


def outcome(test: dict) -> str:
    """Return the column of one test."""
    if test.get("failures") or test.get("result") not in ("COMPLETED", "SKIPPED"):
        return "failed"
    if test["result"] == "SKIPPED":
        return "skipped"
    return str(test.get("gpus", "no device"))


def main() -> int:
    """Print the table; return 1 if a test failed or there are none."""
    suites: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    failed = []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        for suite in json.loads(path.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                if test["status"] != "RUN":
                    continue
                column = outcome(test)
                suites[suite["name"]][column] += 1
                if column == "failed":
                    failed.append(f"{suite['name']}.{test['name']}")
    print("| suite | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, counts in sorted(suites.items()):
        print(f"| {name} | " + " | ".join(str(counts[column]) for column in COLUMNS) + " |")
    total = sum(suites.values(), collections.Counter())
    print("| all | " + " | ".join(str(total[column]) for column in COLUMNS) + " |")
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed or not suites else 0


if __name__ == "__main__":
    sys.exit(main())
