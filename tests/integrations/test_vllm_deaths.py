# SPDX-License-Identifier: Apache-2.0
"""An engine is killed or stopped; the other one reports an error or recovers."""

import signal
import time

import pytest
from engines import PrefillDecode
from tiny_model import prompt

# For how long the prefill engine keeps blocks that nobody fetched (vLLM's default is 30 s).
LEASE_SECONDS = 10
# vLLM notices an expired lease in its next step; the rest is for a loaded machine.
RELEASE_SECONDS = LEASE_SECONDS + 60


class Story:
    """A pair of engines, the tokens that are right, and the time that each step took."""

    def __init__(self, mode, library, model, folder, record):
        self.mode, self.record, self.count = mode, record, 0
        self.pair = PrefillDecode(
            model,
            mode,
            library.environment,
            folder,
            kv_connector_extra_config={"kv_lease_duration": LEASE_SECONDS},
        )
        self.prompts = [prompt(150 + 10 * index, 7) for index in range(10)]
        self.right = [self.alone(self.pair.prefill, tokens) for tokens in self.prompts]

    def name(self):
        self.count += 1
        return f"request-{self.count}"

    def alone(self, engine, tokens):
        return engine.generate(self.name(), tokens)["tokens"]

    def lives(self, engine, index):
        """The engine serves what needs no other one."""
        assert self.alone(engine, self.prompts[index]) == self.right[index]

    def works(self, index):
        assert self.pair.generate(self.name(), self.prompts[index])["tokens"] == self.right[index]

    def timed(self, what, begin):
        self.record(what, round(time.monotonic() - begin, 2))

    def decode_is_stopped(self):
        pair, name = self.pair, self.name()
        params = pair.prefilled(name, self.prompts[1])
        pair.decode.signal(signal.SIGSTOP)
        pair.decode.start(name, self.prompts[1], params)
        begin = time.monotonic()
        self.lives(pair.prefill, 1)
        pair.prefill.wait_idle(RELEASE_SECONDS)
        self.timed("decode stopped: prefill gave its blocks back", begin)
        pair.decode.signal(signal.SIGCONT)
        begin = time.monotonic()
        # Its lease is over: the request must end, how is vLLM's affair.
        self.ends(pair.decode, name)
        self.timed("decode continued: its request ended", begin)
        self.works(2)

    def prefill_is_stopped(self, index):
        """The decode engine goes on with other requests while its producer does not answer."""
        pair, name = self.pair, self.name()
        params = pair.prefilled(name, self.prompts[index])
        pair.prefill.signal(signal.SIGSTOP)
        begin = time.monotonic()
        pair.decode.start(name, self.prompts[index], params)
        self.lives(pair.decode, 1)
        self.timed("prefill stopped: decode served another request", begin)
        pair.prefill.signal(signal.SIGCONT)
        begin = time.monotonic()
        # The blocks are still there: the stop was shorter than their lease.
        assert pair.decode.finish(name)["tokens"] == self.right[index]
        self.timed("prefill continued: the request ended", begin)

    def ends(self, engine, name):
        """What became of a request whose blocks no longer come; None in push mode.

        There vLLM waits for the producer until the client aborts, and keeps the blocks even then: a
        producer that it takes for alive might still write.
        """
        if self.mode == "pull":
            return engine.finish(name)
        self.lives(engine, 1)
        engine.abort(name)
        self.lives(engine, 1)
        assert name not in engine.done
        return None

    def prefill_is_killed(self, index):
        """The decode engine's answer to a request whose blocks died with the prefill engine."""
        pair, name = self.pair, self.name()
        params = pair.prefilled(name, self.prompts[index])
        pair.prefill.kill()
        begin = time.monotonic()
        pair.decode.start(name, self.prompts[index], params)
        seen = self.ends(pair.decode, name)
        self.timed("prefill killed: the request ended", begin)
        self.lives(pair.decode, index)
        return seen

    def replace(self, side, **extra):
        getattr(self.pair, side).close()
        setattr(self.pair, side, self.pair.engine(side, **extra).wait_ready())


@pytest.fixture(params=["pull", "push"])
def story(request, library, tiny_model, tmp_path, record_property):
    def record(what, seconds):
        record_property(what, seconds)
        print(f"{library.name} {request.param}: {what} after {seconds} s")

    made = Story(request.param, library, tiny_model, tmp_path, record)
    yield made
    made.pair.close()


def test_the_survivor_goes_on(story):
    story.works(0)
    story.decode_is_stopped()
    story.prefill_is_stopped(8)
    story.works(9)

    seen = story.prefill_is_killed(3)
    if story.mode == "pull":
        assert seen["reason"] == "error", seen
    story.replace("prefill")
    story.works(4)

    name = story.name()
    params = story.pair.prefilled(name, story.prompts[5])
    story.pair.decode.start(name, story.prompts[5], params, 800)
    story.pair.decode.kill()
    begin = time.monotonic()
    story.lives(story.pair.prefill, 5)
    story.pair.prefill.wait_idle(RELEASE_SECONDS)
    story.timed("decode killed: prefill gave its blocks back", begin)
    story.replace("decode", kv_load_failure_policy="recompute")
    story.works(6)

    seen = story.prefill_is_killed(7)
    if story.mode == "pull":
        assert seen["tokens"] == story.right[7], seen
