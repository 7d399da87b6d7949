# SPDX-License-Identifier: Apache-2.0
"""Errors that a subscriber stores and raises later: what they keep alive."""

import asyncio
import gc
import threading
import traceback
import weakref

import onehop
import pytest
from onehop.weights import VersionChanged
from pairs import Engine, Trainer


def depth(failure):
    return len(list(traceback.walk_tb(failure.__traceback__)))


def test_each_wait_raises_an_error_of_its_own(made):
    trainer = made(Trainer)
    trainer.publish(1)
    pulling = made(Engine, trainer).subscriber.ipull(9)

    async def pulled():
        return await pulling

    for wait in (pulling.wait, lambda: asyncio.run(pulled())):
        seen = []
        for _ in range(3):
            with pytest.raises(VersionChanged, match="version 9 is not there") as caught:
                wait()
            seen.append(caught.value)
        assert len(set(map(id, seen))) == 3
        assert len({depth(one) for one in seen}) == 1
        assert all(one.versions == {"p": 1} for one in seen)
        assert all(one.status == onehop.Status.CANCELLED for one in seen)
        assert "in pull" in "".join(traceback.format_exception(seen[0])), "where it was raised"


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("failing", ["own thread", "another thread"])
def test_a_failed_pull_leaves_no_cycle(made, failing):
    trainers = [made(Trainer, name, size=1 << 16) for name in "ab"]
    for trainer in trainers:
        trainer.publish(1)
    engine = made(Engine, *trainers, size=1 << 16)
    mover = engine.subscriber._mover
    original = mover._finish

    def finish(requests, deadline):
        own = threading.current_thread() is threading.main_thread()
        path = original(requests, deadline)
        if own == (failing == "own thread"):
            raise onehop.OperationError(onehop.Status.CANCELLED, "an error of the test")
        return path

    mover._finish = finish
    kept = []
    try:
        engine.subscriber.pull()
    except onehop.OperationError as failure:  # pytest.raises() would keep it
        kept = [failure.text, weakref.ref(failure)]
    assert kept[0] == "an error of the test"
    assert kept[1]() is None
    del mover._finish
