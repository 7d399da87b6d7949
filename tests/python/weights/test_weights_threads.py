# SPDX-License-Identifier: Apache-2.0
"""A subscriber that several threads use."""

import gc

import numpy as np
import onehop
import pytest
from onehop import InvalidArgument
from pairs import Begun, Engine, Parts, Trainer, in_thread, until


@pytest.fixture
def trainer(made):
    trainer = made(Trainer)
    trainer.publish(1)
    return trainer


def test_any_thread_advances_an_iteration(made, trainer):
    engine = made(Parts, trainer)
    parts = engine.subscriber.pull_parts()
    assert [in_thread(next, parts) for _ in range(4)] == [0, 1, 2, 3]
    assert trainer.publisher.leases == {"s": 1}
    assert in_thread(next, parts, "the end") == "the end"
    assert trainer.publisher.leases == {}
    assert in_thread(list, engine.subscriber.pull_parts()) == [0, 1, 2, 3]
    assert (engine.quarters == 1).all()
    in_thread(engine.subscriber.close)


def test_any_thread_ends_an_iteration(made, trainer):
    engine = made(Parts, trainer)
    parts = engine.subscriber.pull_parts()
    next(parts)
    in_thread(parts.close)
    until(lambda: trainer.publisher.leases == {}, "the end of the lease")
    # The garbage collector runs in any thread.
    parts = engine.subscriber.pull_parts()
    next(parts)
    cycle = [parts]
    cycle.append(cycle)
    del parts, cycle
    in_thread(gc.collect)
    until(lambda: trainer.publisher.leases == {}, "the end of the lease")
    assert in_thread(list, engine.subscriber.pull_parts()) == [0, 1, 2, 3]


def test_a_call_between_two_parts_is_an_error(made, trainer):
    engine = made(Parts, trainer)
    subscriber = engine.subscriber
    parts = subscriber.pull_parts()
    next(parts)
    for call in (
        subscriber.prepare,
        subscriber.pull,
        lambda: subscriber.wait_version(1),
        lambda: next(subscriber.pull_parts()),
        lambda: subscriber.want("w", np.zeros(64, np.int64)),
    ):
        with pytest.raises(InvalidArgument, match=r"between two parts of pull_parts\(\)"):
            call()
    with pytest.raises(onehop.TimeoutError, match=r"end of pull_parts\(\), which was not advanced"):
        in_thread(subscriber.wait_version, 1, 0.05)
    assert list(parts) == [1, 2, 3]
    assert (engine.quarters == 1).all()


@pytest.mark.parametrize("call", [lambda close: close(), in_thread])
def test_close_ends_an_iteration_between_two_parts(made, trainer, call):
    engine = made(Parts, trainer)
    parts = engine.subscriber.pull_parts()
    next(parts)
    call(engine.subscriber.close)
    until(lambda: trainer.publisher.leases == {}, "the end of the lease")
    with pytest.raises(onehop.EndpointError, match="was closed") as caught:
        next(parts)
    assert caught.value.status == onehop.Status.CLOSED
    assert next(parts, "the end") == "the end"


def test_close_ends_a_wait_without_a_limit(made, trainer):
    engine = made(Engine, trainer)
    subscriber = engine.subscriber
    waiting = Begun(lambda: subscriber.wait_version(2, None))
    until(lambda: trainer.publisher._book._waiters, "the question")
    subscriber.close()
    with pytest.raises(onehop.EndpointError, match="was closed") as caught:
        waiting.result()
    assert caught.value.status == onehop.Status.CLOSED
    for call in (subscriber.pull, subscriber.ipull, lambda: subscriber.wait_version(1)):
        with pytest.raises(onehop.EndpointError, match="was closed: create another"):
            call()


def test_a_call_waits_for_others_until_its_deadline(made, trainer):
    engine = made(Engine, trainer)
    subscriber = engine.subscriber
    waiting = Begun(lambda: subscriber.wait_version(2, None))
    until(lambda: trainer.publisher._book._waiters, "the question")
    text = r"pull\(\) of subscriber 's' waited 0.05 s for the end of wait_version\(2\)"
    with pytest.raises(onehop.TimeoutError, match=text):
        in_thread(subscriber.pull, None, 0.05)
    trainer.publish(2)
    assert waiting.result() == 2
    assert subscriber.pull(timeout=5).version == 2
