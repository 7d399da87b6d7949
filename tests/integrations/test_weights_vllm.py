# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer engine "onehop": tokens as of an engine loaded from a checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Library
from programs import run

VERSIONS = 2
# Not a multiple of 64, to which vLLM pads: such layers are processed at the end of an update.
VOCABULARY = 500


@pytest.fixture(scope="module")
def library():
    return Library("onehop", plugin=True)


@pytest.fixture(scope="module")
def checkpoints(vllm, tmp_path_factory):
    """Models of one shape and other weights."""
    import tiny_model

    folders = []
    for number in range(VERSIONS + 1):
        folders.append(tmp_path_factory.mktemp(f"model{number}"))
        tiny_model.write(folders[-1], number, VOCABULARY)
    return [str(folder) for folder in folders]


@pytest.fixture(scope="module")
def loaded(library, checkpoints):
    """Tokens of engines that were loaded from each checkpoint."""
    return run("weights_program.py", library, 600, "loaded", *checkpoints)


# A bucket for the whole model; one for each layer, so that two buffers take turns.
@pytest.mark.parametrize(("bucket_bytes", "in_place"), [(1 << 30, False), (1 << 16, True)])
def test_tokens_after_each_version(library, checkpoints, loaded, bucket_bytes, in_place):
    how = json.dumps([bucket_bytes, in_place])
    first, *others = checkpoints
    tokens = run("weights_program.py", library, 600, how, first, *others, first)
    assert tokens == [*loaded, loaded[0]]
    assert len({json.dumps(one) for one in loaded}) == len(loaded), "all versions differ"


def test_the_engine_is_known_to_vllm(library):
    """By the entry point alone, which may be called again."""
    assert run("weights_known_program.py", library, 300) == [True, True]


def test_the_example(library):
    """Its policy gets better by what each update has brought to the engine."""
    example = Path(__file__).parents[2] / "examples" / "rl_weights.py"
    command = [sys.executable, str(example)]
    told = subprocess.run(
        command, env=library.environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert told.returncode == 0, told.stderr[-4000:]
    rewards = [line for line in told.stdout.splitlines() if line.startswith("rewards:")]
    values = [float(one) for one in rewards[0].split()[1:]]
    assert len(set(values)) > 1, values
    assert max(values[1:]) > values[0], values
