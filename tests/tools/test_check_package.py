# SPDX-License-Identifier: Apache-2.0
"""The check of wheels and sdists refuses each kind of offence."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_package.py"
METADATA = (
    "Metadata-Version: 2.4\nName: onehop\n\n# onehop\n\n[UCX](https://openucx.org) [up](#onehop)\n"
)

spec = importlib.util.spec_from_file_location("check_package", SCRIPT)
assert spec
assert spec.loader
check_package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_package)


def filled(patterns: list[str]) -> dict[str, bytes]:
    """Give each pattern a file that it matches."""
    return {pattern.replace("*", "x").replace("?", "0"): b"" for pattern in patterns}


@pytest.fixture
def wheel(tmp_path: Path):
    """Check a wheel that has what it needs and these files."""

    def check(changes: dict[str, bytes | None], **options: bool) -> list[str]:
        contents = filled(check_package.WHEEL_HAS)
        contents["onehop/libonehop.so.0"] = check_package.FATBIN
        contents["onehop-x.dist-info/METADATA"] = METADATA.encode()
        path = tmp_path / "onehop.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**contents, **changes}.items():
                if content is not None:
                    archive.writestr(name, content)
        return check_package.wheel_offences(path, **options)

    return check


def sdist_offences(folder: Path, changes: dict[str, bytes | None]) -> list[str]:
    contents = {**filled(check_package.SDIST_HAS), "PKG-INFO": METADATA.encode(), **changes}
    path = folder / "onehop-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            if content is not None:
                member = tarfile.TarInfo(f"onehop-1/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return check_package.sdist_offences(path)


def test_a_whole_wheel_passes(wheel):
    assert wheel({}) == []


def test_a_missing_file_is_refused(wheel):
    offences = wheel({"onehop/pkgconfig/onehop.pc": None, "onehop/_core.x.so": None})
    assert offences == ["there is no onehop/_core.*.so", "there is no onehop/pkgconfig/onehop.pc"]


def test_a_stray_file_is_refused(wheel):
    assert wheel({"tests/x.py": b""}) == ["tests/x.py has no place in it"]


def test_a_wheel_without_kernels_is_refused_unless_that_is_meant(wheel):
    bare = {"onehop/libonehop.so.0": b""}
    assert wheel(bare) == ["onehop/libonehop.so.0 has no CUDA kernels"]
    assert wheel(bare, kernels=False) == []


def test_a_large_wheel_is_refused(wheel, monkeypatch):
    monkeypatch.setattr(check_package, "LARGEST", 100)
    (offence,) = wheel({})
    assert offence.endswith("bytes, at most 100 are allowed")


def test_a_module_that_needs_a_library_of_the_machine_is_refused(wheel, tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    source, module = tmp_path / "module.cc", tmp_path / "module.so"
    source.write_text("#include <string>\nstd::string text(int n) { return std::to_string(n); }\n")
    command = [compiler, "-shared", "-fPIC", str(source), "-o", str(module), "-lstdc++"]
    subprocess.run(command, check=True, timeout=60)
    offences = wheel({"onehop/_core.x.so": module.read_bytes()})
    assert offences == ["onehop/_core.x.so needs libstdc++.so.6"]


def test_a_function_that_no_library_has_is_refused(wheel, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "library.c", tmp_path / "library.so"
    source.write_text(
        "const char* newer_than_this(int);\n"
        "__attribute__((weak)) const char* perhaps(int);\n"
        "int oh_endpoint_create(void);\n"
        "const char* name(int n) {\n"
        "  return perhaps && oh_endpoint_create() ? perhaps(n) : newer_than_this(n);\n"
        "}\n"
    )
    command = [compiler, "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=60)
    offences = wheel({"onehop/libonehop.so.0": library.read_bytes() + check_package.FATBIN})
    assert offences == [
        "onehop/libonehop.so.0 needs newer_than_this, which no library that it names has"
    ]


@pytest.mark.parametrize("target", ["docs/start.md", "../LICENSE", "/x.png"])
def test_a_link_into_the_repository_is_refused(target):
    offences = check_package.description_offences(METADATA + f"\n[text]({target})\n")
    assert offences == [f"its description links to {target!r}, which an index does not have"]


def test_a_description_that_is_no_page_is_refused():
    offences = check_package.description_offences("Name: onehop\n\nonehop\n")
    assert offences == ["its description is no README of Markdown"]


def test_a_whole_sdist_passes(tmp_path):
    assert sdist_offences(tmp_path, {}) == []


def test_what_an_sdist_lacks_and_has_too_much_is_refused(tmp_path):
    changes = {"src/kernels/kernels.cu": None, "tests/x.py": b"", "bench/pingpong.cc": b""}
    assert sdist_offences(tmp_path, changes) == [
        "there is no src/kernels/kernels.cu",
        "tests/x.py has no place in it",
        "bench/pingpong.cc has no place in it",
    ]


def test_the_command_names_file_and_offence(tmp_path, capsys):
    sdist_offences(tmp_path, {"LICENSE": None})
    path = tmp_path / "onehop-1.tar.gz"
    assert check_package.main([str(path)]) == 1
    assert capsys.readouterr().out == f"{path}: there is no LICENSE\n"
