# SPDX-License-Identifier: Apache-2.0
"""One program over both libraries: equal outcomes, or a listed difference with its reason."""

import json

import programs
from conftest import Library

# Step: (NIXL's outcome, onehop's, why they differ). A difference that is gone must leave the list.
DIFFERENCES: dict[str, tuple[str, str, str]] = {}


def test_each_call_has_the_same_outcome(tmp_path):
    real = programs.run("differential_program.py", Library("nixl"))
    ours = programs.run("differential_program.py", Library("onehop"))
    assert list(real) == list(ours)
    different = {step: (real[step], ours[step]) for step in real if real[step] != ours[step]}
    listed = {step: outcomes for step, (*outcomes, _) in DIFFERENCES.items()}
    listed = {step: tuple(outcomes) for step, outcomes in listed.items()}
    (tmp_path / "outcomes.json").write_text(json.dumps({"nixl": real, "onehop": ours}, indent=1))
    assert different == listed
