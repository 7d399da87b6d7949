# SPDX-License-Identifier: Apache-2.0
"""Four trainers and three engines, each in a process: bytes, versions, and what deaths do."""

import contextlib
import itertools
import random
import signal
import time

import numpy as np
import onehop
import pytest
from onehop.deadline import Deadline
from onehop.weights import PublisherLost, Subscriber, VersionChanged
from pairs import Begun
from processes import DEADLINE
from trainers import SharedTrainer

# Names, whole shapes, dtypes and what they are given as.
MODEL = [
    ("square", (96, 64), "int64", None),
    ("uneven", (37, 19), "int32", None),
    ("bf16", (40, 24), "uint16", "bfloat16"),
    ("fp8", (33, 50), "uint8", "float8_e4m3fn"),
    ("deep", (6, 10, 4, 3), "int64", None),
]
NORM = ("norm", (64,), "int64", None)


def halves(size, number):
    """Return start and extent of one of two uneven halves."""
    cut = (size * 2) // 5
    return (0, cut) if number == 0 else (cut, size - cut)


def grid():
    """2 x 2 boxes of all tensors, by trainer; the norm is on all of them."""
    boxes = {}
    for row, column in itertools.product(range(2), range(2)):
        own = boxes[f"trainer{row}{column}"] = [("norm", (64,), (0,), (64,), "int64", None)]
        for name, shape, dtype, named in MODEL:
            sides = [halves(shape[0], row), halves(shape[1], column)]
            sides += [(0, size) for size in shape[2:]]
            start, extent = zip(*sides, strict=True)
            own.append((name, shape, start, extent, dtype, named))
    return boxes


def replicas(count, shape=(512, 1024)):
    return {f"r{n}": [("w", shape, (0, 0), shape, "int64", None)] for n in range(count)}


def whole_wants():
    return [
        (name, shape, (0,) * len(shape), shape, dtype, named)
        for name, shape, dtype, named in [*MODEL, NORM]
    ]


def sliced_wants(dim, number, of=3):
    """Every tensor's slice of engine `number`, along a dimension, of uneven sizes."""
    wants = [("norm", (64,), (0,), (64,), "int64", None)]
    for name, shape, dtype, named in MODEL:
        start, extent = [0] * len(shape), list(shape)
        start[dim] = shape[dim] * number // of
        extent[dim] = shape[dim] * (number + 1) // of - start[dim]
        wants.append((name, shape, tuple(start), tuple(extent), dtype, named))
    return wants


def publish(trainers, version):
    for trainer in trainers:
        trainer.start("publish", version)
    for trainer in trainers:
        trainer.result()


def until(call, accept, what):
    end = time.monotonic() + DEADLINE / 2
    while not accept(value := call()):
        assert time.monotonic() < end, f"{what} did not come; at last {value!r}"
        time.sleep(0.002)
    return value


def test_rows_columns_and_copies(cluster, transport):
    """2 x 2 boxes into an engine of rows, one of columns, and one that has all."""
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    wants = {"rows": sliced_wants(0, 1), "columns": sliced_wants(1, 2), "all": whole_wants()}
    engines = cluster.engines(tables, wants)
    for version in (1, 2, 5):
        publish(trainers, version)
        for engine in engines:
            engine.start("wait_version", version)
        assert [engine.result() for engine in engines] == [version] * 3
        for engine in engines:
            engine.start("pull", version)
        paths = {path for engine in engines for path in engine.result().paths.values()}
        assert paths == {{"auto": "shm"}.get(transport, transport)}
    assert "trainer00: " in engines[2].explain()


def test_200_versions_at_random_times(cluster):
    """Trainers write while engines pull whenever they like: nothing is ever of two versions."""
    rng = random.Random(5)
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    engines = cluster.engines(
        tables, {"rows": sliced_wants(0, 0), "columns": sliced_wants(1, 1), "all": whole_wants()}
    )
    changed, seen = 0, [set() for _ in engines]
    for first in range(0, 200, 20):
        for engine in engines:
            engine.start("pull_until", first + 19)
        for version in range(first, first + 20):
            publish(trainers, version)
            time.sleep(0.004 * rng.random())
        for number, engine in enumerate(engines):
            versions, times = engine.result()
            seen[number].update(versions)
            changed += times
    assert all({*range(19, 200, 20)} <= versions for versions in seen), seen
    assert changed, "no pull ever met begin(): the test does not test it"


def test_an_engine_joins_late(cluster):
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    for version in range(3):
        publish(trainers, version)
    (late,) = cluster.engines(tables, {"late": whole_wants()})
    assert late.pull().version == 2
    late.kill()
    (again,) = cluster.engines(tables, {"late": whole_wants()})
    publish(trainers, 3)
    assert again.pull().version == 3


@pytest.mark.parametrize("phase", ["idle", "holding", "waiting"])
def test_an_engine_is_killed(cluster, phase):
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    first, second = cluster.engines(tables, {"first": whole_wants(), "second": whole_wants()})
    publish(trainers, 1)
    first.pull()
    if phase == "holding":
        first.hold()
        assert trainers[0].leases() == {"first": 1}
        trainers[0].start("begin")
        assert not trainers[0].pipe.poll(0.1), "begin() waits for the lease"
    elif phase == "waiting":
        first.start("wait_version", 2)
    first.kill()
    if phase == "holding":
        trainers[0].result()
        trainers[0].write(2)
        trainers[0].commit(2)
        publish(trainers[1:], 2)
    else:
        publish(trainers, 2)
    assert second.wait_version(2) == 2
    assert second.pull().version == 2
    assert all(trainer.leases() == {} for trainer in trainers)


@pytest.mark.parametrize("phase", ["idle", "open", "writing", "pulling"])
def test_a_trainer_without_a_replica_is_killed(cluster, phase):
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    (engine,) = cluster.engines(tables, {"engine": whole_wants()})
    victim = trainers[3]
    if phase != "idle":
        publish(trainers, 1)
    if phase == "writing":
        victim.begin()
    if phase == "pulling":
        engine.hold()
    victim.kill()
    call, arguments = ("let_go", ()) if phase == "pulling" else ("pull", ())
    with pytest.raises(PublisherLost, match="trainer11") as caught:
        getattr(engine, call)(*arguments)
    assert caught.value.publishers == ["trainer11"]
    # Nobody is left with a lease, and a trainer that starts again is another publisher.
    for trainer in trainers[:3]:
        until(trainer.leases, lambda leases: leases == {}, "the end of the leases")
    (again,) = cluster.trainers({"trainer11": grid()["trainer11"]})
    (other,) = cluster.engines([*tables[:3], again.table], {"other": whole_wants()})
    publish([*trainers[:3], again], 2)
    assert other.pull().version == 2


def test_replicas_stand_in_for_one_that_is_killed(cluster):
    """Whenever it dies, the pull ends well, with bytes of one version, or says that it changed."""
    trainers = cluster.trainers(replicas(3))
    tables = [trainer.table for trainer in trainers]
    wants = [("w", (512, 1024), (0, 0), (512, 1024), "int64", None)]
    (engine,) = cluster.engines(tables, {"engine": wants})
    publish(trainers, 1)
    assert set(engine.pull().paths) == {"r0", "r1", "r2"}
    engine.start("pull")
    trainers[1].kill()
    assert engine.result().version == 1
    assert set(engine.pull().paths) == {"r0", "r2"}
    publish([trainers[0], trainers[2]], 2)
    assert engine.wait_version(2) == 2
    assert engine.pull().version == 2
    (late,) = cluster.engines(tables, {"late": wants})
    assert set(late.pull().paths) == {"r0", "r2"}
    trainers[0].kill()
    trainers[2].kill()
    with pytest.raises(PublisherLost):
        engine.pull()


@pytest.mark.parametrize("seed", range(4))
def test_a_trainer_is_killed_at_any_time_of_pulls(cluster, seed):
    rng = random.Random(seed)
    trainers = cluster.trainers(replicas(2, (2048, 1024)))
    tables = [trainer.table for trainer in trainers]
    wants = [("w", (2048, 1024), (0, 0), (2048, 1024), "int64", None)]
    (engine,) = cluster.engines(tables, {"engine": wants})
    publish(trainers, 1)
    engine.pull()
    engine.start("pull")
    time.sleep(0.05 * rng.random())
    trainers[seed % 2].kill()
    assert engine.result().version == 1
    assert len(engine.pull().paths) == 1


def test_a_stopped_engine_is_named_and_can_be_evicted(cluster):
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    stopped, other = cluster.engines(tables, {"stopped": whole_wants(), "other": whole_wants()})
    publish(trainers, 1)
    stopped.hold()
    stopped.stop()
    with pytest.raises(onehop.TimeoutError, match=r"'stopped' \(version 1\)"):
        trainers[0].begin(0.3)
    assert other.pull().version == 1
    assert all(trainer.evict("stopped") for trainer in trainers)
    publish(trainers, 2)
    assert other.pull().version == 2
    stopped.signal(signal.SIGCONT)
    with pytest.raises(VersionChanged, match="lease of version 1 was taken away"):
        stopped.let_go()
    assert stopped.pull().version == 2


@pytest.mark.parametrize("phase", ["open", "confirming"])
def test_a_stopped_trainer_ends_a_pull_at_its_deadline(cluster, phase):
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    (engine,) = cluster.engines(tables, {"engine": whole_wants()})
    publish(trainers, 1)
    if phase == "confirming":
        engine.hold(2)
    trainers[2].stop()
    with pytest.raises(onehop.TimeoutError, match="'trainer10', whose process is alive"):
        engine.let_go() if phase == "confirming" else engine.pull(None, 0.5)
    for trainer in (trainers[0], trainers[1], trainers[3]):
        until(trainer.leases, lambda leases: leases == {}, "the end of the leases")
    trainers[2].signal(signal.SIGCONT)
    until(trainers[2].leases, lambda leases: leases == {}, "the end of the late lease")
    publish(trainers, 2)
    assert engine.wait_version(2, 30) == 2
    assert engine.pull(2, 30).version == 2


@pytest.fixture
def subscribers(cluster):
    """Makes subscribers in this process, which share an endpoint, to one trainer each."""
    with onehop.Endpoint() as endpoint, contextlib.ExitStack() as stack:

        def make(name, trainer, timeout):
            made = Subscriber(endpoint, [trainer.table], name=name, timeout=timeout)
            made.want("w", np.zeros((512, 1024), np.int64))
            return stack.enter_context(made)

        yield make


def test_a_trainer_that_stops_before_it_is_attached(cluster, subscribers):
    (trainer,) = cluster.trainers(replicas(1), SharedTrainer)
    publish([trainer], 1)
    subscriber = subscribers("s", trainer, 0.3)
    subscriber._link(subscriber._tables[0], Deadline(10))
    trainer.stop()
    for call in (subscriber.prepare, lambda: subscriber.pull(timeout=0.2)):
        with pytest.raises(onehop.TimeoutError):
            call()
    trainer.signal(signal.SIGCONT)
    assert subscriber.pull(timeout=30).version == 1


def test_a_stopped_trainer_delays_the_connect_of_another_subscriber(cluster, subscribers):
    stopped, other = cluster.trainers(replicas(2))
    publish([stopped, other], 1)
    first, second = subscribers("first", stopped, 60), subscribers("second", other, 0.3)
    stopped.stop()
    connecting = Begun(first.prepare)
    until(first._hub._connecting.locked, lambda locked: locked, "the connect")
    with pytest.raises(onehop.TimeoutError, match=r"waited 0\.3 s for another connect"):
        second.prepare()
    stopped.signal(signal.SIGCONT)
    connecting.result()
    assert second.pull(timeout=30).version == 1


def test_many_engines_come_and_go(cluster):
    trainers = cluster.trainers(grid())
    tables = [trainer.table for trainer in trainers]
    publish(trainers, 0)
    for version in range(1, 6):
        names = [f"engine{version}{n}" for n in range(2)]
        engines = cluster.engines(tables, {name: sliced_wants(0, 0) for name in names})
        for engine in engines:
            engine.start("pull")
        publish(trainers, version)
        for engine in engines:
            try:
                engine.result()
            except VersionChanged:
                assert engine.pull().version == version
        engines[0].kill()
        engines[1].close()
    publish(trainers, 6)
