# SPDX-License-Identifier: Apache-2.0
"""Leases and versions, in one process: who may read, who may write, and what errors say."""

import asyncio
import subprocess
import sys
import threading
import time

import numpy as np
import onehop
import pytest
from onehop import InvalidArgument
from onehop.weights import Publisher, PublisherLost, Subscriber, VersionChanged
from pairs import Begun, Engine, Trainer, until


def test_read_only_arrays_are_published():
    with onehop.Endpoint() as ours, onehop.Endpoint() as theirs:
        mapped = np.arange(100)
        mapped.flags.writeable = False  # as numpy.load(mmap_mode="r") maps a checkpoint
        publisher = Publisher(ours, "p", timeout=10)
        publisher.add("w", mapped)
        table = publisher.seal()
        publisher.begin()
        publisher.commit(1)
        subscriber = Subscriber(theirs, [table], name="s", timeout=10)
        seen = np.zeros_like(mapped)
        subscriber.want("w", seen)
        assert subscriber.pull(1).version == 1
        assert (seen == mapped).all()
        subscriber.close()
        publisher.close(timeout=10)


class Held:
    """A pull that holds its leases until it is told to go on."""

    def __init__(self, engine) -> None:
        subscriber = engine.subscriber
        self._parts = subscriber.pull_parts()
        next(self._parts)

    def finish(self):
        for _ in self._parts:
            pass


def test_a_version_is_pulled(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(7)
    assert engine.subscriber.wait_version(1) == 7
    pull = engine.subscriber.pull()
    assert (pull.version, pull.bytes, pull.paths) == (7, 512, {"p": "local"})
    assert (engine.weights == 7).all()
    assert trainer.publisher.leases == {}


def test_nothing_is_pulled_before_the_first_commit(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    with pytest.raises(VersionChanged, match="'p' has none that can be read now") as caught:
        engine.subscriber.pull()
    assert caught.value.versions == {"p": None}
    assert (engine.weights == 0).all()


def test_a_version_that_is_not_there(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(3)
    with pytest.raises(VersionChanged, match="version 2 is not there: 'p' has 3") as caught:
        engine.subscriber.pull(2)
    assert caught.value.versions == {"p": 3}


def test_publishers_that_do_not_agree(made):
    one, other = made(Trainer, "a"), made(Trainer, "b")
    # Both send: a half each of a tensor that is cut.
    trainers = [one, other]
    for number, trainer in enumerate(trainers):
        trainer.publisher.close()
        trainer.publisher = Publisher(trainer.endpoint, "ab"[number], timeout=10)
        trainer.publisher.add("w", trainer.weights, global_shape=[128], start=[64 * number])
        trainer.table = trainer.publisher.seal()
        trainer.publisher.commit(number + 1)
    engine = made(Engine, one, other, size=128)
    with pytest.raises(VersionChanged, match="do not agree: 'a' has 1, 'b' has 2") as caught:
        engine.subscriber.pull()
    assert caught.value.versions == {"a": 1, "b": 2}
    for trainer in trainers:
        until(lambda trainer=trainer: trainer.publisher.leases == {}, "the end of a lease")
    one.publish(2)
    assert engine.subscriber.wait_version(1) == 2
    assert engine.subscriber.pull().version == 2


def test_begin_waits_for_the_leases(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    held = Held(engine)
    assert trainer.publisher.leases == {"s": 1}
    began = threading.Event()

    def begin():
        trainer.publisher.begin()
        trainer.weights[:] = 99
        began.set()

    thread = threading.Thread(target=begin)
    thread.start()
    other = made(Engine, trainer, name="other")

    def refused():
        try:
            other.subscriber.pull()
        except VersionChanged:
            return True
        return False

    until(refused, "begin()")
    assert not began.is_set()
    assert (trainer.weights == 1).all()
    held.finish()
    thread.join(10)
    assert began.is_set()
    assert (engine.weights == 1).all()


def test_begin_names_the_holders_at_its_deadline(made):
    trainer = made(Trainer)
    engines = [made(Engine, trainer, name=name) for name in ("eve", "adam")]
    trainer.publish(4)
    held = [Held(engine) for engine in engines]
    text = r"'adam' \(version 4\), 'eve' \(version 4\); version 4 can still be read"
    with pytest.raises(onehop.TimeoutError, match=text):
        trainer.publisher.begin(timeout=0.05)
    third = made(Engine, trainer, name="third")
    assert third.subscriber.pull().version == 4
    with pytest.raises(InvalidArgument, match=r"without begin\(\)"):
        trainer.publisher.commit(5)
    for one in held:
        one.finish()
    trainer.publish(5)
    assert third.subscriber.pull().version == 5


def test_an_evicted_pull_is_no_success(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    held = Held(engine)
    assert trainer.publisher.evict("s")
    assert not trainer.publisher.evict("s")
    trainer.publish(2)
    with pytest.raises(VersionChanged, match="lease of version 1 was taken away by publisher 'p'"):
        held.finish()
    assert engine.subscriber.pull().version == 2


def test_begin_again_before_commit_returns(made):
    trainer = made(Trainer)
    trainer.publisher.begin()
    trainer.publisher.begin()
    trainer.publisher.commit(0)
    assert trainer.publisher.version == 0


@pytest.mark.parametrize("version", [-1, 3, 2, 1 << 63])
def test_versions_increase(made, version):
    trainer = made(Trainer)
    trainer.publish(3)
    trainer.publisher.begin()
    with pytest.raises(InvalidArgument, match=r"whose last version is 3"):
        trainer.publisher.commit(version)
    trainer.publisher.commit(4)


def test_wait_version_waits(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    found = []
    thread = threading.Thread(target=lambda: found.append(engine.subscriber.wait_version(5)))
    thread.start()
    for version in range(2, 7):
        trainer.publish(version)
    thread.join(10)
    assert found[0] >= 5


def test_wait_version_names_who_does_not_commit(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    with pytest.raises(onehop.TimeoutError, match=r"wait_version\(2\).*publisher 'p'"):
        engine.subscriber.wait_version(2, timeout=0.05)


def test_a_publisher_that_is_closed_is_gone(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    trainer.publisher.close()
    for call in (engine.subscriber.pull, lambda: engine.subscriber.wait_version(1)):
        with pytest.raises(PublisherLost, match="publisher 'p' is gone: tensor 'w'") as caught:
            call()
        assert caught.value.publishers == ["p"]


def test_a_replica_stands_in(made):
    one, other = made(Trainer, "a", size=1 << 16), made(Trainer, "b", size=1 << 16)
    engine = made(Engine, one, other, size=1 << 16)
    for trainer in (one, other):
        trainer.publish(1)
    assert set(engine.subscriber.pull().paths) == {"a", "b"}
    one.close()
    assert set(engine.subscriber.pull().paths) == {"b"}
    late = made(Engine, one, other, name="late", size=1 << 16)
    assert set(late.subscriber.pull().paths) == {"b"}
    assert (late.weights == 1).all()


def test_a_subscriber_that_ends_holds_no_lease(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    held = Held(engine)
    assert trainer.publisher.leases == {"s": 1}
    engine.endpoint.close()
    trainer.publisher.begin(timeout=10)
    assert trainer.publisher.leases == {}
    with pytest.raises(onehop.Error):
        held.finish()


def test_a_part_after_the_other(made):
    trainer = made(Trainer)
    trainer.publisher.close()
    trainer.publisher = Publisher(trainer.endpoint, "p2", timeout=10)
    layers = [np.full(100, n, np.int32) for n in range(7)]
    for number, layer in enumerate(layers):
        trainer.publisher.add(f"layer{number}", layer)
    table = trainer.publisher.seal()
    trainer.publisher.commit(1)
    buffers = [np.zeros(100, np.int32) for _ in range(2)]
    with onehop.Endpoint() as endpoint, Subscriber(endpoint, [table], name="s", timeout=10) as sub:
        for number in range(7):
            sub.want(f"layer{number}", buffers[number % 2], part=number)
        for _ in range(2):
            seen = [int(buffers[part % 2].sum()) for part in sub.pull_parts(1)]
            assert seen == [100 * n for n in range(7)]
        with pytest.raises(InvalidArgument, match=r"7 parts: use pull_parts\(\)"):
            sub.pull()
        assert trainer.publisher.leases == {}
        parts = sub.pull_parts(1)
        next(parts)
        assert trainer.publisher.leases == {"s": 1}
        parts.close()
        trainer.publisher.begin(timeout=10)


def test_awaited(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(2)

    async def pull():
        return await engine.subscriber.ipull(2)

    assert asyncio.run(pull()).version == 2
    assert (engine.weights == 2).all()
    assert engine.subscriber.ipull().wait(10).version == 2
    with pytest.raises(VersionChanged):
        engine.subscriber.ipull(9).wait(10)


def test_both_sides_share_an_endpoint(made):
    trainer = made(Trainer)
    trainer.publish(1)
    target = np.zeros(64, np.int64)
    with Subscriber(trainer.endpoint, [trainer.table], name="self", timeout=10) as subscriber:
        subscriber.want("w", target)
        assert subscriber.wait_version(1) == 1
        assert subscriber.pull().version == 1
    assert (target == 1).all()
    trainer.publish(2)


def test_a_new_plan_after_another_want(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    engine.subscriber.pull()
    some = np.zeros(8, np.int64)
    engine.subscriber.want("w", some, start=[8])
    assert engine.subscriber.prepare().bytes == 512 + 64
    assert engine.subscriber.pull().bytes == 512 + 64
    assert (some == 1).all()


def test_explained(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    plan = engine.subscriber.prepare()
    assert (plan.bytes, plan.blocks, plan.publishers) == (512, 1, ["p"])
    text = plan.explain()
    assert "p: 512 bytes in 1 blocks by local, because" in text
    assert "w [0:64]" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"global_shape": [4, 8], "start": [3, 0]}, r"\(4, 8\) at \(3, 0\) is not within"),
        ({"global_shape": [4]}, r"not within global_shape \(4,\)"),
        ({"start": [1, 0]}, "not within"),
        ({"dtype": "bfloat16"}, "elements of 1 bytes.*'bfloat16'"),
    ],
)
def test_boxes_that_make_no_sense(made, arguments, text):
    trainer = made(Trainer)
    publisher = Publisher(trainer.endpoint, "other")
    with pytest.raises(InvalidArgument, match=text):
        publisher.add("v", np.zeros((4, 8), "u1"), **arguments)
    publisher.close()


def test_boxes_of_one_publisher_fit_together(made):
    trainer = made(Trainer)
    publisher = Publisher(trainer.endpoint, "other")
    publisher.add("v", np.zeros((4, 8), "u1"), global_shape=[8, 8], start=[0, 0])
    with pytest.raises(InvalidArgument, match="overlaps the one at"):
        publisher.add("v", np.zeros((4, 8), "u1"), global_shape=[8, 8], start=[3, 0])
    with pytest.raises(InvalidArgument, match="in an earlier"):
        publisher.add("v", np.zeros((4, 8), "u1"), global_shape=[9, 8], start=[4, 0])
    publisher.add("v", np.zeros((4, 8), "u1"), global_shape=[8, 8], start=[4, 0])
    publisher.seal()
    with pytest.raises(InvalidArgument, match=r"after seal\(\)"):
        publisher.add("u", np.zeros(4))
    publisher.close()


def test_tensors_that_are_not_contiguous(made):
    trainer = made(Trainer)
    publisher = Publisher(trainer.endpoint, "other")
    with pytest.raises(InvalidArgument, match="'v' is not C-contiguous"):
        publisher.add("v", np.zeros((4, 8))[:, ::2])
    with pytest.raises(InvalidArgument, match="objects or records"):
        publisher.add("v", np.array([None]))
    with pytest.raises(onehop.errors.InvalidType, match="is a int"):
        publisher.add("v", 3)
    publisher.close()


def test_two_tables_of_one_publisher(made):
    trainer = made(Trainer)
    with pytest.raises(InvalidArgument, match="several tables are of publisher 'p'"):
        Subscriber(trainer.endpoint, [trainer.table] * 2, name="s")


def test_a_closed_endpoint_ends_begin(made, caplog):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    trainer.publish(1)
    held = Held(engine)
    failures = []

    def begin():
        try:
            trainer.publisher.begin(timeout=30)
        except onehop.Error as failure:
            failures.append(failure)

    thread = threading.Thread(target=begin)
    thread.start()
    time.sleep(0.05)
    trainer.endpoint.close()
    thread.join(10)
    assert isinstance(failures[0], onehop.EndpointError)
    assert caplog.messages == []
    with pytest.raises(onehop.Error):
        held.finish()


def test_a_subscriber_without_wants_and_one_that_is_closed(made):
    trainer = made(Trainer)
    trainer.publish(1)
    with onehop.Endpoint() as endpoint:
        subscriber = Subscriber(endpoint, [trainer.table], name="s")
        with pytest.raises(InvalidArgument, match=r"call want\(\) first"):
            subscriber.wait_version(1)
        subscriber.want("w", np.zeros(64, np.int64))
        subscriber.close()
        subscriber.close()
        with pytest.raises(onehop.EndpointError, match="was closed"):
            subscriber.pull()


def test_what_publishers_have_together(made):
    trainer = made(Trainer)
    engine = made(Engine, trainer)
    found = engine.subscriber.tensors()
    assert list(found) == ["w"]
    assert (found["w"].dtype, found["w"].shape, found["w"].nbytes) == ("int64", (64,), 512)


def test_publishers_that_share_an_endpoint(made):
    """One of them ends; the link stays, and the other one goes on."""
    trainer = made(Trainer, "a")
    other = Publisher(trainer.endpoint, "b", timeout=10)
    weights = np.full(64, 3, np.int64)
    other.add("v", weights)
    table = other.seal()
    target = np.zeros(64, np.int64)
    engine = made(Engine, trainer)
    with Subscriber(engine.endpoint, [table], name="t", timeout=10) as subscriber:
        subscriber.want("v", target)
        trainer.publish(1)
        other.commit(1)
        assert engine.subscriber.pull().version == subscriber.pull().version == 1
        other.close()
        with pytest.raises(PublisherLost, match="publisher 'b' is gone"):
            subscriber.pull()
    assert engine.subscriber.pull().version == 1
    assert (target == 3).all()


def test_the_end_of_a_program_that_closes_nothing():
    program = """
import numpy as np, onehop
from onehop.weights import Publisher, Subscriber
publisher = Publisher(onehop.Endpoint(), "p")
publisher.add("w", np.ones(8))
table = publisher.seal()
publisher.commit(1)
subscriber = Subscriber(onehop.Endpoint(), [table], name="s")
target = np.zeros(8)
subscriber.want("w", target)
assert subscriber.ipull().wait().version == 1
parts = subscriber.pull_parts()
next(parts)
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_onehop_imports_no_array_library():
    program = "import sys, onehop; print([one for one in ('numpy', 'torch') if one in sys.modules])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
    command[-1] = program.replace("onehop;", "onehop.weights;")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "['numpy']\n"


@pytest.fixture
def interrupted(made):
    """An engine after Ctrl-C in a pull, and an event: a copy is under way until it is set."""
    trainers = [made(Trainer, name, size=1 << 18) for name in "ab"]
    for trainer in trainers:
        trainer.publish(1)
    engine = made(Engine, *trainers, size=1 << 18)
    mover = engine.subscriber._mover
    begun, go_on, original = threading.Event(), threading.Event(), mover._finish

    def finish(requests, deadline):
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(10)
            raise KeyboardInterrupt
        begun.set()
        assert go_on.wait(10)
        return original(requests, deadline)

    mover._finish = finish
    with pytest.raises(KeyboardInterrupt):
        engine.subscriber.pull()
    del mover._finish
    for trainer in trainers:
        until(lambda trainer=trainer: trainer.publisher.leases == {}, "the end of a lease")
    yield engine, go_on
    go_on.set()


def test_a_pull_after_ctrl_c_in_another(interrupted):
    """It waits for what was under way, and is right."""
    engine, go_on = interrupted
    with pytest.raises(onehop.OperationError, match="may still write the tensors") as caught:
        engine.subscriber.pull(timeout=0.05)
    assert caught.value.status == onehop.Status.IN_DOUBT
    go_on.set()
    assert engine.subscriber.pull().version == 1
    assert (engine.weights == 1).all()


def test_close_after_ctrl_c_in_a_pull(interrupted):
    """It waits for what was under way, until its deadline."""
    engine, go_on = interrupted
    subscriber = engine.subscriber
    subscriber._timeout = 0.05
    with pytest.raises(onehop.TimeoutError, match=r"close\(\) of subscriber 's' waited 0.05 s"):
        subscriber.close()
    subscriber._timeout = 10
    closing = Begun(subscriber.close)
    assert not closing.ends_within(0.1)
    go_on.set()
    closing.result()
    assert (engine.weights == 1).all()


class Unreleased:
    """A region that a stopped peer accesses when it is deregistered first."""

    stopped = True

    def deregister(self, timeout):
        if self.stopped:
            self.stopped = False
            raise onehop.TimeoutError(onehop.Status.TIMEOUT, "a peer is stopped")


@pytest.mark.parametrize("again", [True, False])
def test_a_want_that_fails_has_no_effect(made, again):
    trainer = made(Trainer)
    trainer.publish(1)
    engine = made(Engine, trainer)
    subscriber = engine.subscriber
    subscriber._regions.insert(0, Unreleased())
    some = np.zeros(8, np.int64)
    with pytest.raises(onehop.TimeoutError, match="a peer is stopped"):
        subscriber.want("w", some, start=[8])
    if again:
        subscriber.want("w", some, start=[8])
    assert subscriber.pull().bytes == 512 + 64 * again
    assert (engine.weights == 1).all()
    assert (some == again).all()
