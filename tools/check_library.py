#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check a built libonehop against its ABI: tools/check_library.py LIBRARY [HEADERS].

The library must have the SONAME of its major version, and export exactly what the C headers
declare. Prints every offence; the exit status is 1 if there was any. Needs nm and readelf.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

HEADERS = Path(__file__).resolve().parent.parent / "include" / "onehop"
DECLARATION = re.compile(r"\bOH_API\b[^;{]*?\b(oh\w+)\s*\(")
MAJOR = re.compile(r"^#define OH_VERSION_MAJOR (\d+)$", re.MULTILINE)
SONAME = re.compile(r"\(SONAME\).*\[(.*)\]")


def output_of(*command: str) -> str:
    """Return the output of the command; raise if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def declared(headers: Path) -> set[str]:
    """Return every function that the C headers declare as exported."""
    return {
        name
        for header in sorted(headers.glob("*.h"))
        for name in DECLARATION.findall(header.read_text(encoding="utf-8"))
    }


def exported(library: Path) -> set[str]:
    """Return every dynamic symbol that the library defines."""
    lines = output_of("nm", "-D", "--defined-only", "--format=posix", str(library)).splitlines()
    return {line.split()[0] for line in lines}


def offences(library: Path, headers: Path) -> list[str]:
    """Return all offences of the library."""
    found = []
    major = MAJOR.search((headers / "version.h").read_text(encoding="utf-8"))
    assert major, f"{headers}/version.h defines no OH_VERSION_MAJOR"
    expected = f"libonehop.so.{major[1]}"
    soname = SONAME.search(output_of("readelf", "-d", "-W", str(library)))
    if not soname or soname[1] != expected:
        found.append(f"its SONAME is {soname[1] if soname else 'missing'}, not {expected}")
    names, symbols = declared(headers), exported(library)
    found += [f"{name} is declared but not exported" for name in sorted(names - symbols)]
    found += [f"{name} is exported but not declared" for name in sorted(symbols - names)]
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the offences; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("library", type=Path)
    parser.add_argument("headers", nargs="?", type=Path, default=HEADERS)
    options = parser.parse_args(arguments)
    found = offences(options.library, options.headers)
    for offence in found:
        print(f"{options.library}: {offence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
