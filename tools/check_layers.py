#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the layers of the tree.

Rejects includes that point up or sideways, iostreams in code that Python loads, files that are
too long, and files without a licence line. Prints every offence as FILE:LINE: reason; the exit
status is 1 if there was any.

        capi                sees all layers below
    stream              calls of the stream domain; sees endpoint and all below
    communicator        ranks and their links; sees endpoint and all below
    calls               calls that wait on an endpoint step by step; sees endpoint and all below
    endpoint            endpoints, peers, pairing, waiting; sees lane and all below
    lane                lanes for streams and kernels; sees link and all below, no message, no path
    message             two-sided messages; sees one_sided and all below
    one_sided           put, get, signals, notifications; sees path and all below
    path                how bytes move, a folder each; the folders never see each other
    link                what the parts of one link share; sees device and all below
    device              device memory and kernels of one endpoint; sees the layers from here on
    transport | control see memory, platform, base; never each other
    memory              sees platform, base
    platform            sees base
    kernels             sees base
    base                sees itself
    bench, python, tools     see include/onehop only; bench also the declarations of CUDA's driver
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The layers that each layer of src/ may include besides itself.
_CORE = {"base", "platform", "memory"}
_DEVICE = {*_CORE, "transport", "control", "kernels"}
_LINK = {*_DEVICE, "device"}
_PATH = {*_LINK, "link"}
_ONE_SIDED = {*_PATH, "path"}
_MESSAGE = {*_ONE_SIDED, "one_sided"}
_ENDPOINT = {*_MESSAGE, "message", "lane"}
_ABOVE_ENDPOINT = ("stream", "communicator", "calls")
BELOW: dict[str, set[str]] = {
    "base": set(),
    "platform": {"base"},
    "memory": {"base", "platform"},
    "transport": _CORE,
    "control": _CORE,
    "kernels": {"base"},
    "device": _DEVICE,
    "link": _LINK,
    "path": _PATH,
    "one_sided": _ONE_SIDED,
    "message": _MESSAGE,
    "lane": _PATH,
    "endpoint": _ENDPOINT,
    **{layer: {*_ENDPOINT, "endpoint"} for layer in _ABOVE_ENDPOINT},
    "capi": {*_ENDPOINT, "endpoint", *_ABOVE_ENDPOINT},
}
# Folders in these layers must not include each other.
SEPARATE = ("transport", "path")
# The tables of their parts, which may include all folders of the layer.
TABLES = {"path/paths.cc"}
PUBLIC = "onehop"
CONSUMERS = ("bench", "python", "tools")
# Declarations of a foreign interface only: bench allocates memory of every kind.
BENCH_SEES = "platform/cuda/abi.h"

# All copies of libstdc++ in a process share the indices of facets: in a module with its own copy, a
# stream may get the wrong facet and crash.
NO_STREAMS = ("include", "src", "bench", "python")
STREAMS = {
    "codecvt", "fstream", "iomanip", "iostream", "istream", "locale", "ostream", "regex", "sstream",
    "strstream", "syncstream",
}  # fmt: skip

SOURCE_SUFFIXES = {".h", ".hpp", ".cuh", ".cc", ".cpp", ".c", ".cu"}
# Stubs (.pyi) are generated, and need no licence line.
LICENSED_SUFFIXES = SOURCE_SUFFIXES | {".py", ".cmake", ".sh"}
LICENSED_NAMES = {"CMakeLists.txt"}
LICENSE = "SPDX-License-Identifier: Apache-2.0"
LICENSE_WITHIN = 5  # lines from the top

MOST_LINES = 600
MOST_LINES_PUBLIC = 250
LONG_PUBLIC = {"device.cuh"}  # contains the kernels

FOLDERS = ("include", "src", "tests", "bench", "python", "tools", "examples", "cmake")
SKIPPED = {"__pycache__", "node_modules", ".venv", "build", "dist"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class Offence(NamedTuple):
    """One violation, and its place."""

    path: Path
    line: int
    what: str


def files_of(root: Path) -> Iterator[Path]:
    """Yield every checked file, as a path relative to the root."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root)
            skipped = SKIPPED.intersection(relative.parts) or any(
                part.startswith((".", "build-")) or part.endswith(".egg-info")
                for part in relative.parts
            )
            if path.is_file() and not path.is_symlink() and not skipped:
                yield relative
    for name in ("CMakeLists.txt",):
        if (root / name).is_file():
            yield Path(name)


def includes_of(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yield line, quoting and name of each include."""
    for number, line in enumerate(text.splitlines(), start=1):
        found = INCLUDE.match(line)
        if found:
            yield number, found[1] == '"', found[2]


def separate_folder(path: str) -> str | None:
    """Return the backend or path that a file belongs to, or None for files that all share."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[0] in SEPARATE else None


def wrong_include_in_source(path: Path, included: str) -> str | None:
    """Return why a file of src/ must not include this, or None."""
    inside = Path(*path.parts[1:])
    layer = inside.parts[0]
    target = included.split("/")[0]
    if layer not in BELOW:
        return f"the folder src/{layer} is no layer that is known"
    if ".." in included.split("/"):
        return f'"{included}" leaves its folder: name it from src/'
    if target == PUBLIC:
        kernels = layer == "kernels" and included.endswith(".cuh")
        if layer == "capi" or included.endswith(".h") or kernels:
            return None
        return f'"{included}" is for users: within src/ the C headers are enough'
    if target not in BELOW:
        return None
    if target != layer and target not in BELOW[layer]:
        return f"{layer} must not see {target}: it includes {included}"
    if inside.as_posix() in TABLES:
        return None
    own, other = separate_folder(inside.as_posix()), separate_folder(included)
    if other and own != other and layer == target:
        return f"folders of {layer} must not see each other: {own or layer} includes {included}"
    return None


def wrong_include(path: Path, included: str, quoted: bool) -> str | None:
    """Return why this file must not include that, or None."""
    top = path.parts[0]
    if not quoted and "/" not in included:  # any library's
        if top in NO_STREAMS and included in STREAMS:
            return f"<{included}> crashes where there are two copies of libstdc++: use <cstdio>"
        return None
    if top == "src" and len(path.parts) > 2:
        return wrong_include_in_source(path, included)
    target = included.split("/")[0]
    private = target in BELOW or (target == "src")
    if top == "bench" and included == BENCH_SEES:
        return None
    if top == "include" and quoted and target != PUBLIC:
        return f"a public header must not see {included}"
    if top in (*CONSUMERS, "include") and (private or "../src/" in included):
        return f"{top} sees include/onehop only: it includes {included}"
    return None


def check_file(root: Path, path: Path) -> Iterator[Offence]:
    """Yield all offences of one file."""
    is_source = path.suffix in SOURCE_SUFFIXES
    if not is_source and path.suffix not in LICENSED_SUFFIXES and path.name not in LICENSED_NAMES:
        return
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    if lines and not any(LICENSE in line for line in lines[:LICENSE_WITHIN]):
        yield Offence(path, 1, f"the line '{LICENSE}' is missing")
    public = path.parts[0] == "include"
    most = MOST_LINES_PUBLIC if public else MOST_LINES
    if len(lines) > most and not (public and path.name in LONG_PUBLIC):
        kind = "a public header" if public else "a file"
        yield Offence(path, most + 1, f"{len(lines)} lines: {kind} has at most {most}")
    if not is_source:
        return
    for line, quoted, included in includes_of(text):
        why = wrong_include(path, included, quoted)
        if why:
            yield Offence(path, line, why)


def check_tree(root: Path) -> list[Offence]:
    """Return all offences of a tree."""
    return [offence for path in files_of(root) for offence in check_file(root, path)]


def main(arguments: list[str] | None = None) -> int:
    """Print the offences; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent
    )
    root = parser.parse_args(arguments).root
    offences = check_tree(root)
    for offence in offences:
        print(f"{offence.path.as_posix()}:{offence.line}: {offence.what}")
    if offences:
        print(f"{len(offences)} offences", file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
