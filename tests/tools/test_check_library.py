# SPDX-License-Identifier: Apache-2.0
"""The check of the library's ABI refuses each kind of offence."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_library.py"
HEADER = """
typedef struct oh_thing oh_thing;
OH_API oh_status oh_thing_make(const oh_thing* other,
                               oh_thing** thing);
OH_API const char* ohName(void);
"""
SOURCE = "void oh_thing_make(void) {}\nvoid ohName(void) {}\n"

spec = importlib.util.spec_from_file_location("check_library", SCRIPT)
assert spec
assert spec.loader
check_library = importlib.util.module_from_spec(spec)
sys.modules["check_library"] = check_library
spec.loader.exec_module(check_library)


@pytest.fixture
def offences(tmp_path: Path):
    """Build a library of this source and look at it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("there is no C compiler")
    (tmp_path / "version.h").write_text("#define OH_VERSION_MAJOR 3\n")
    (tmp_path / "thing.h").write_text(HEADER)

    def build_and_check(source: str, soname: str | None = "libonehop.so.3") -> list[str]:
        (tmp_path / "thing.c").write_text(source)
        named = [f"-Wl,-soname,{soname}"] if soname else []
        library = tmp_path / "libonehop.so"
        command = [compiler, "-shared", "-fPIC", *named, "-o", library, tmp_path / "thing.c"]
        subprocess.run(command, check=True, timeout=60)
        return check_library.offences(library, tmp_path)

    return build_and_check


def test_a_library_as_declared_passes(offences):
    assert offences(SOURCE) == []


def test_a_wrong_soname_is_refused(offences):
    assert offences(SOURCE, "libonehop.so") == ["its SONAME is libonehop.so, not libonehop.so.3"]
    assert offences(SOURCE, None) == ["its SONAME is missing, not libonehop.so.3"]


def test_a_missing_function_is_refused(offences):
    assert offences("void ohName(void) {}") == ["oh_thing_make is declared but not exported"]


def test_every_other_symbol_is_refused(offences):
    found = offences(SOURCE + "void oh_hidden(void) {}\nint other;\n")
    assert found == [
        "oh_hidden is exported but not declared",
        "other is exported but not declared",
    ]
