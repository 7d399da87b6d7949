# SPDX-License-Identifier: Apache-2.0
"""The check of the models passes good ones, and refuses each kind of bad one."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("check_models", ROOT / "tools" / "check_models.py")
assert spec
assert spec.loader
check_models = importlib.util.module_from_spec(spec)
sys.modules["check_models"] = check_models
spec.loader.exec_module(check_models)

needs_spin = pytest.mark.skipif(not shutil.which("spin"), reason="spin is not installed")

GOOD = """
byte data;
bool ready;
active proctype writer() {
#ifdef MUTANT_READY_TOO_EARLY
  ready = true;
#endif
  data = 1;
#ifndef MUTANT_NEVER_READY
  ready = true
#endif
}
active proctype reader() { ready; assert(data == 1) }
"""


def run(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    (tmp_path / "a.pml").write_text(text)
    status = check_models.main([str(tmp_path)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_mutants_of_a_model_are_found() -> None:
    assert check_models.mutants_of(GOOD) == ["MUTANT_READY_TOO_EARLY", "MUTANT_NEVER_READY"]
    assert check_models.mutants_of("#if defined(MUTANT_A)\n# ifdef MUTANT_B\n/* MUTANT_C */") == [
        "MUTANT_A",
        "MUTANT_B",
    ]


@needs_spin
def test_a_good_model_whose_mutants_are_found_wrong_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(tmp_path, GOOD, capsys)
    assert (status, err) == (0, "")
    assert "a.pml: MUTANT_READY_TOO_EARLY: assertion violated" in out
    assert "a.pml: MUTANT_NEVER_READY: invalid end state" in out


@needs_spin
@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("assert(data == 1)", "assert(data == 2)", "a.pml: assertion violated"),
        ("ready; assert", "data == 2; assert", "a.pml: invalid end state"),
        ("MUTANT_", "OTHER_", "no MUTANT_ shows"),
        ("assert(data == 1)", "skip", "MUTANT_READY_TOO_EARLY was not found wrong: "),
        ("  data = 1;", "  data = 1 +;", "a.pml: "),
        (
            "ready; assert",
            "ready; if :: data == 2 -> data = 3; data = 1 :: else fi; assert",
            "a.pml: unreached",
        ),
        ("byte data;", "byte data;\n#ifdef MUTANT_X\n?\n#endif", "MUTANT_X was not found wrong"),
    ],
)
def test_a_bad_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, text: str
) -> None:
    assert old in GOOD
    status, _, err = run(tmp_path, GOOD.replace(old, new), capsys)
    assert status == 1
    assert text in err


def test_no_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_models.main([str(tmp_path)]) == 1
    assert "no models" in capsys.readouterr().err
