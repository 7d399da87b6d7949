# SPDX-License-Identifier: Apache-2.0
"""vLLM's NIXL connectors: tokens after a transfer equal those of one engine alone."""

import pytest
from engines import PrefillDecode
from tiny_model import prompt

# Part of a block, one block, a block and a bit, many blocks (a block has 32 tokens).
LENGTHS = (5, 32, 33, 200, 700)


@pytest.fixture(scope="module", params=["pull", "push"])
def pair(request, library, tiny_model, tmp_path_factory):
    made = PrefillDecode(
        tiny_model, request.param, library.environment, tmp_path_factory.mktemp("engines")
    )
    yield made
    codes = made.close()
    # NIXL's libraries crash in their destructors, behind the end of Python.
    assert library.name == "nixl" or codes == [0, 0], made.decode.text()[-4000:]


def test_the_engines_use_this_library(pair, library):
    assert library.is_origin(pair.prefill.library), pair.prefill.library
    assert library.is_origin(pair.decode.library), pair.decode.library


@pytest.mark.parametrize("length", LENGTHS)
def test_tokens_equal_those_of_one_engine(pair, length):
    tokens = prompt(length)
    alone = pair.prefill.generate(f"alone-{length}", tokens)["tokens"]
    seen = pair.generate(f"moved-{length}", tokens)
    assert seen["reason"] == "length"
    assert seen["tokens"] == alone
    assert len(set(alone)) > 4  # a model that repeats itself tells nothing


def test_many_requests_at_once(pair):
    prompts = {f"{index}": prompt(40 + 17 * index, 1) for index in range(6)}
    alone = {name: pair.prefill.generate(f"a{name}", p)["tokens"] for name, p in prompts.items()}
    for name, tokens in prompts.items():
        pair.start(f"m{name}", tokens)
    assert {name: pair.decode.finish(f"m{name}")["tokens"] for name in prompts} == alone


def test_wrong_blocks_are_noticed(pair):
    """The control: KV in the wrong place changes the tokens."""
    tokens = prompt(200, 2)
    alone = pair.prefill.generate("alone", tokens)["tokens"]
    initiator = pair.decode if pair.mode == "pull" else pair.prefill
    initiator.wrong_blocks(True)
    assert pair.generate("wrong", tokens)["tokens"] != alone
    initiator.wrong_blocks(False)
    assert pair.generate("right", tokens)["tokens"] == alone


def test_blocks_are_given_back(pair):
    before = pair.prefill.state()["free"]
    pair.generate("given-back", prompt(200, 3))
    pair.prefill.wait_idle(25)  # less than the lease of 30 s: the notification came
    assert pair.prefill.state()["free"] == before
