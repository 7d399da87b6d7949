# SPDX-License-Identifier: Apache-2.0
"""A machine that lacks packages says which, and gets them when asked to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "debian_packages.sh"
TOOLS = ["bash", "grep", "head", "id", "ln"]  # of the script itself
COMMANDS = ["c++", "cmake", "git", "ip", "ninja", "pkg-config", "python3", "spin", "clang++"]
# Keeps what it was asked for; what it "installs" are the commands, one for each package.
APT_GET = """#!{folder}/bash
echo "$@" >>"{folder}/asked"
for argument; do
  case $argument in
    g++) ln -s "{folder}/cmake" "{folder}/c++" ;; # also a command that does nothing
    spin) exit 100 ;;
  esac
done
"""


@pytest.fixture
def machine(tmp_path):
    """Run the script where PATH has all commands but some."""

    def run(*arguments: str, without: tuple[str, ...] = (), **commands: str):
        stubs = {name: "#!/bin/sh\n" for name in COMMANDS if name not in without}
        for name, text in {**stubs, **commands}.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        for name in TOOLS:
            found = shutil.which(name)
            assert found
            (tmp_path / name).symlink_to(found)
        command = [tmp_path / "bash", SCRIPT, *arguments]
        return subprocess.run(
            command,
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_a_machine_that_has_all_says_nothing(machine):
    done = machine("lint", "docs", "models")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_lane_needs_is_named_and_refused(machine):
    done = machine("tidy", without=("cmake", "ninja", "c++"))
    assert done.returncode == 1
    assert "these packages of Debian or Ubuntu are missing: g++ ninja-build" in done.stderr
    assert "apt-get install --no-install-recommends g++ ninja-build" in done.stderr
    assert "or run tools/test.sh --install" in done.stderr


def test_a_lane_asks_for_its_own_packages_only(machine):
    assert machine("docs", without=("cmake", "ninja", "c++", "spin")).returncode == 0


def test_what_lanes_run_without_is_named_once_and_not_refused(machine):
    done = machine("models", "fuzz", without=("spin", "clang++"))
    assert "==== without clang spin: sanitizers by gcc, no fuzzers; no models." in done.stdout
    assert done.returncode == 0, done.stderr


def test_install_gets_them_and_goes_on_without_what_is_not_to_be_had(machine, tmp_path):
    apt_get = APT_GET.format(folder=tmp_path)
    done = machine(
        "--install", "models", "integrations", without=("c++", "spin"), **{"apt-get": apt_get}
    )
    assert done.returncode == 0, done.stderr
    update, needed, useful = (tmp_path / "asked").read_text().splitlines()
    assert update.startswith("update")
    assert needed.endswith("--no-install-recommends g++")
    assert useful.endswith(" spin")
    assert "==== without spin: no models." in done.stdout


def test_an_old_compiler_is_refused_with_the_remedy(machine):
    old = "#!/bin/sh\n[ $1 != --version ] || { echo g++ 11.4.0; exit 0; }\nexit 1\n"
    done = machine("cpp", **{"c++": old})
    assert done.returncode == 1
    assert "g++ 11.4.0 is too old, g++ 12 or clang 14 or newer is needed" in done.stderr
    assert "CC=gcc-12 CXX=g++-12 tools/test.sh" in done.stderr
