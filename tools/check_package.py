#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check wheels and sdists before they are published: tools/check_package.py FILE...

A wheel must contain the library with its kernels, the modules, the headers and the files for CMake
and pkg-config. It must need no C++ library of the machine, and be small. An sdist must contain what
the build needs, and not the repository's tests and tools. Both must have a README that an index can
show without dead links. Prints every offence; the exit status is 1 if there was any. Needs readelf
and readme-renderer.
"""

from __future__ import annotations

import argparse
import email
import fnmatch
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from html.parser import HTMLParser
from pathlib import Path

from readme_renderer import markdown

LARGEST = 15 << 20  # bytes of a wheel
WHEEL_HAS = [
    "onehop/__init__.py",
    "onehop/_bench.*.so",
    "onehop/_core.*.so",
    "onehop/_core.pyi",
    "onehop/cmake/onehopConfig.cmake",
    "onehop/cmake/onehopConfigVersion.cmake",
    "onehop/cmake/onehopTargets.cmake",
    "onehop/include/onehop/device.cuh",
    "onehop/include/onehop/onehop.h",
    "onehop/include/onehop/onehop.hpp",
    "onehop/libonehop.so",
    "onehop/libonehop.so.?",
    "onehop/pkgconfig/onehop.pc",
    "onehop/py.typed",
    "onehop-*.dist-info/entry_points.txt",
    "onehop-*.dist-info/licenses/LICENSE",
]
WHEEL_HAS_ONLY = ["onehop/*", "onehop-*.dist-info/*"]
SDIST_HAS = [
    "CMakeLists.txt",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "bench/module.cc",
    "include/onehop/version.h",
    "pyproject.toml",
    "python/onehop/__init__.py",
    "src/kernels/kernels.cu",
]
SDIST_HAS_NOT = [
    "*.so",
    "*.so.*",
    ".ci/*",
    "bench/pingpong*",
    "build*",
    "models/*",
    "tests/*",
    "tools/*",
]
# Present on every Linux with glibc. libstdc++ is not listed: other packages load older ones.
LIBRARIES = [
    "ld-linux*.so.?",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libonehop.so.?",
    "libpthread.so.0",
    "librt.so.1",
]
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
HEADING = "#user-content-"  # prefix of anchors that headings get, and links to them use
# An undefined symbol without a version must come from Python or libonehop: a compiler for an older
# glibc silently leaves functions of a newer one undefined.
UNDEFINED = re.compile(r" GLOBAL +DEFAULT +UND (\w+)$", re.MULTILINE)
SYMBOLS = ["Py*", "_Py*", "oh_*"]
ELF = b"\x7fELF"
FATBIN = b"\x50\xed\x55\xba"  # the magic number of a fatbin with kernels


class _Links(HTMLParser):
    """Collects the targets of a page's links and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value or "" for name, value in attrs if name in ("href", "src")]


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _lacking(names: list[str], patterns: list[str]) -> list[str]:
    return [f"there is no {wanted}" for wanted in patterns if not fnmatch.filter(names, wanted)]


def description_offences(metadata: str) -> list[str]:
    """Return all offences of the README as an index shows it."""
    page = markdown.render(email.message_from_string(metadata).get_payload())
    if not page or "<h1" not in page:
        return ["its description is no README of Markdown"]
    links = _Links()
    links.feed(page)
    return [
        f"its description links to {target!r}, which an index does not have"
        for target in links.targets
        if not target.startswith(("https://", "http://", HEADING))
    ]


def binary_offences(name: str, content: bytes) -> list[str]:
    """Return all offences of a library or module."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        command = ["readelf", "-d", "--dyn-syms", "-W", file.name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found = [
        f"{name} needs {library}"
        for library in NEEDED.findall(done.stdout)
        if not _matches(library, LIBRARIES)
    ]
    return found + [
        f"{name} needs {symbol}, which no library that it names has"
        for symbol in UNDEFINED.findall(done.stdout)
        if not _matches(symbol, SYMBOLS)
    ]


def wheel_offences(path: Path, kernels: bool = True) -> list[str]:
    """Return all offences of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist() if name[-1] != "/"}
    found = _lacking(list(contents), WHEEL_HAS)
    found += [
        f"{name} has no place in it" for name in contents if not _matches(name, WHEEL_HAS_ONLY)
    ]
    size = path.stat().st_size
    if size > LARGEST:
        found.append(f"it has {size} bytes, at most {LARGEST} are allowed")
    for name, content in contents.items():
        if content.startswith(ELF):
            found += binary_offences(name, content)
        if kernels and fnmatch.fnmatch(name, "onehop/libonehop.so.?") and FATBIN not in content:
            found.append(f"{name} has no CUDA kernels")
        if name.endswith(".dist-info/METADATA"):
            found += description_offences(content.decode())
    return found


def sdist_offences(path: Path) -> list[str]:
    """Return all offences of an sdist."""
    with tarfile.open(path) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
        information = sdist.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        metadata = information.read().decode() if information else ""
    found = _lacking(names, SDIST_HAS)
    found += [f"{name} has no place in it" for name in names if _matches(name, SDIST_HAS_NOT)]
    return found + description_offences(metadata)


def main(arguments: list[str] | None = None) -> int:
    """Print the offences; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument(
        "--no-kernels", action="store_true", help="wheels were built by ONEHOP_CUDA=OFF"
    )
    options = parser.parse_args(arguments)
    status = 0
    for path in options.files:
        wheel = path.suffix == ".whl"
        found = wheel_offences(path, not options.no_kernels) if wheel else sdist_offences(path)
        for offence in found:
            print(f"{path}: {offence}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
