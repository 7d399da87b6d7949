# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheel that was built of it, as users get them.

WHEEL and SDIST name the files, as tools/test.sh and tools/build_wheels.sh set them; WHEEL_PYTHON is
the interpreter that the wheel is for (else the one that runs the tests).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 100  # seconds

pytestmark = pytest.mark.skipif(
    not {"WHEEL", "SDIST"} <= os.environ.keys(), reason="WHEEL and SDIST name no files"
)


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Run a command apart from the sources; return what it prints."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("package")


@pytest.fixture(scope="module")
def python(folder):
    """The interpreter of a fresh environment that has the wheel, and numpy for the example."""
    given = os.environ.get("WHEEL_PYTHON", sys.executable)
    run(given, "-m", "venv", folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", os.environ["WHEEL"], "numpy", folder=folder)
    return python


@pytest.mark.parametrize("name", ["WHEEL", "SDIST"])
def test_it_has_what_it_needs_and_no_more(name, folder):
    run(sys.executable, ROOT / "tools" / "check_package.py", os.environ[name], folder=folder)


def test_the_first_example_runs(python, folder):
    shutil.copy(ROOT / "examples" / "pair.py", folder)
    command = [str(python), "pair.py"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(rank)], **options) for rank in range(2)]
    try:
        first, second = (rank.communicate(timeout=DEADLINE)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert "4000000 bytes came back by shm, first value 1.0" in first
    assert second == "received 4000000 bytes from rank 0 by shm\n"


def test_the_command_runs(python, folder):
    said = run(python, "-m", "onehop", "info", folder=folder)
    assert f"{folder}/venv/lib" in "".join(said.split())
    assert "not in this build" not in said, "the wheel has no CUDA kernels"
    run(python.parent / "onehop", "doctor", folder=folder)


def library_folder(python, folder) -> str:
    program = "import onehop; print(onehop.get_library_dir())"
    return run(python, "-c", program, folder=folder).strip()


def test_cmake_finds_it(python, folder):
    project = folder / "project"
    project.mkdir()
    shutil.copy(ROOT / "examples" / "messages.cc", project)
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\n"
        "project(program LANGUAGES CXX)\n"
        "find_package(onehop 0.1 REQUIRED)\n"
        "add_executable(messages messages.cc)\n"
        "target_link_libraries(messages onehop::onehop)\n"
    )
    prefix = library_folder(python, folder)
    run("cmake", "-S", project, "-B", project / "build", f"-Donehop_ROOT={prefix}", folder=folder)
    run("cmake", "--build", project / "build", folder=folder)
    assert "bytes by shm, right" in run(project / "build" / "messages", folder=folder)


def test_pkg_config_finds_it(python, folder):
    library = library_folder(python, folder)
    shutil.copy(ROOT / "examples" / "put_notify.c", folder)
    flags = run(
        *("pkg-config", "--cflags", "--libs", "onehop"),
        folder=folder,
        PKG_CONFIG_PATH=f"{library}/pkgconfig",
    ).split()
    run("cc", "put_notify.c", *flags, f"-Wl,-rpath,{library}", "-o", "put_notify", folder=folder)
    assert "the bytes are right" in run("./put_notify", folder=folder)
