#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the slowest GoogleTest cases of a folder of JSON reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SHOWN = 10


def times(folder: Path) -> list[tuple[float, str]]:
    """Return seconds and name of each case."""
    found = []
    for report in folder.glob("*.json"):
        for suite in json.loads(report.read_text(encoding="utf-8"))["testsuites"]:
            for case in suite["testsuite"]:
                found.append((float(case["time"].rstrip("s")), f"{suite['name']}.{case['name']}"))
    return found


def main() -> None:
    """Print the slowest cases."""
    for seconds, name in sorted(times(Path(sys.argv[1])), reverse=True)[:SHOWN]:
        print(f"{seconds:8.2f} s  {name}")


if __name__ == "__main__":
    main()
