# SPDX-License-Identifier: Apache-2.0
"""A subscriber that several threads use."""

import gc
import threading

import numpy as np
import onehop
import pytest
from onehop import InvalidArgument
from onehop.deadline import Deadline
from onehop.weights.hub import Kind
from onehop.weights.inquiry import Target
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


def test_an_iteration_is_not_that_of_a_later_thread(made, trainer):
    """The operating system gives threads the idents of those that have ended."""
    engine = made(Parts, trainer)
    parts = engine.subscriber.pull_parts()
    failures = []

    def wait():
        try:
            engine.subscriber.wait_version(1, 0.01)
        except onehop.Error as failure:
            failures.append(failure)

    for call in [lambda: next(parts)] + [wait] * 10:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert [type(failure) for failure in failures] == [onehop.TimeoutError] * 10
    assert list(parts) == [1, 2, 3]


def test_ipull_beside_close(made, trainer):
    engine = made(Engine, trainer)
    turns = engine.subscriber._turns

    def refuse_if_closed():
        del turns.refuse_if_closed
        engine.subscriber.close()

    turns.refuse_if_closed = refuse_if_closed
    with pytest.raises(onehop.EndpointError, match="was closed: create another") as caught:
        engine.subscriber.ipull()
    assert caught.value.status == onehop.Status.CLOSED


class HeldAhead:
    """An iteration whose second part is held while the caller has the first one."""

    def __init__(self, engine, timeout=...) -> None:
        self.engine, self._mover = engine, engine.subscriber._mover
        self._original = self._mover._finish
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.in_copier = lambda: None
        self.parts = engine.subscriber.pull_parts(timeout=timeout)
        self._mover._finish = self._finish
        assert next(self.parts) == 0
        assert self.begun.wait(10)

    def _finish(self, requests, deadline):
        if threading.current_thread().name.startswith("onehop-weights-copy"):
            self.begun.set()
            assert self.go_on.wait(10)
            self.in_copier()
        return self._original(requests, deadline)

    def collect(self):
        """Let the garbage collector end the iteration in this thread."""
        cycle = [self.parts]
        cycle.append(cycle)
        del self.parts, cycle
        gc.collect()


@pytest.fixture
def held(made, trainer):
    held = HeldAhead(made(Parts, trainer), timeout=None)
    yield held
    held.go_on.set()


def test_close_ends_an_iteration_without_a_limit_at_its_own_deadline(held):
    subscriber = held.engine.subscriber
    subscriber._timeout = 0.05
    with pytest.raises(onehop.TimeoutError, match="keep the tensors"):
        in_thread(subscriber.close)
    subscriber._timeout = 10
    held.go_on.set()
    in_thread(subscriber.close)
    assert (held.engine.quarters[:2] == 1).all()


def test_close_and_the_iteration_wait_for_the_part_in_flight(held):
    subscriber = held.engine.subscriber
    closing = Begun(subscriber.close)
    until(lambda: subscriber._turns._current.what == "close()", "the turn of close()")
    advancing = Begun(list, held.parts)
    assert not advancing.ends_within(0.1)
    assert not closing.done
    held.go_on.set()
    closing.result()
    with pytest.raises(onehop.EndpointError, match="was closed"):
        advancing.result()
    assert (held.engine.quarters[:2] == 1).all()


def test_the_collector_ends_an_iteration_in_a_thread_that_copies_it(held):
    collected = threading.Event()

    def collect():
        held.in_copier = lambda: None
        held.collect()
        collected.set()

    held.in_copier = collect
    held.go_on.set()
    assert collected.wait(10)
    assert list(held.engine.subscriber.pull_parts()) == [0, 1, 2, 3]
    assert (held.engine.quarters == 1).all()


def test_the_collector_ends_an_iteration_in_the_thread_of_the_messages(held, trainer):
    subscriber = held.engine.subscriber
    collected = threading.Event()
    inquiries, received = subscriber._inquiries, subscriber._inquiries.received

    def collect(link, message):
        del inquiries.received
        held.collect()
        collected.set()
        received(link, message)

    inquiries.received = collect
    (source,) = subscriber._plan.sources
    asked = Target("p", source.table.token, source.link)
    number = inquiries.ask(asked, Kind.WAIT, 1)
    inquiries.answers([number], Deadline(10), "a question")
    assert collected.is_set()
    assert not held.go_on.is_set()
    # The next call waits for the part in flight.
    with pytest.raises(onehop.OperationError, match="may still write the tensors"):
        next(subscriber.pull_parts(timeout=0.05))
    held.go_on.set()
    assert list(subscriber.pull_parts()) == [0, 1, 2, 3]
