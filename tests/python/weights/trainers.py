# SPDX-License-Identifier: Apache-2.0
"""Trainers and engines in processes of their own, which a test tells what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback

import numpy as np
import onehop
from onehop.weights import Publisher, Subscriber, VersionChanged
from processes import DEADLINE, _spawn

# A model whose every element says which version it is of: element i of version v is i + v * STEP.
STEP = 1_000_003


def content(shape, version, dtype="int64"):
    """Return what a whole tensor has in a version."""
    size = int(np.prod(shape))
    return (
        (np.arange(size, dtype=np.uint64) + np.uint64(version * STEP)).astype(dtype).reshape(shape)
    )


class Trainer:
    """A publisher; boxes are (name, whole shape, start, extent, dtype, given as)."""

    make = staticmethod(np.zeros)

    def __init__(self, name, boxes) -> None:
        self.endpoint = onehop.Endpoint()
        self.publisher = Publisher(self.endpoint, name, timeout=DEADLINE / 2)
        self.boxes = []
        for tensor, shape, start, extent, dtype, named in boxes:
            memory = self.make(extent, dtype)
            self.publisher.add(tensor, memory, global_shape=shape, start=start, dtype=named)
            inside = tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
            self.boxes.append((memory, shape, inside, dtype))
        self.table = self.publisher.seal()

    def begin(self, timeout=...):
        self.publisher.begin(timeout)

    def write(self, version):
        for memory, shape, inside, dtype in self.boxes:
            memory[:] = content(shape, version, dtype)[inside]

    def commit(self, version):
        self.publisher.commit(version)

    def publish(self, version):
        self.begin()
        self.write(version)
        self.commit(version)

    def leases(self):
        return self.publisher.leases

    def evict(self, name):
        return self.publisher.evict(name)

    def close(self):
        self.publisher.close()
        self.endpoint.close()


class SharedTrainer(Trainer):
    """A publisher of memory that is shared with its peers: attaching it takes its process."""

    make = staticmethod(onehop.empty)


class Engine:
    """A subscriber in its process; wants are as the boxes of a Trainer."""

    def __init__(self, name, tables, wants) -> None:
        self.endpoint = onehop.Endpoint()
        self.subscriber = Subscriber(self.endpoint, tables, name=name, timeout=DEADLINE / 2)
        self.wants = []
        for tensor, shape, start, extent, dtype, named in wants:
            memory = np.zeros(extent, dtype)
            self.subscriber.want(tensor, memory, start=start, dtype=named)
            inside = tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
            self.wants.append((tensor, memory, shape, inside, dtype))
        self.subscriber.prepare()
        self.parts = None

    def pull(self, version=None, timeout=...):
        """Pull, and check every element."""
        pull = self.subscriber.pull(version, timeout)
        for name, memory, shape, inside, dtype in self.wants:
            right = content(shape, pull.version, dtype)[inside]
            wrong = int(np.count_nonzero(memory != right))
            assert not wrong, f"{wrong} elements of {name} are not of version {pull.version}"
        return pull

    def pull_until(self, last):
        """Pull until a version is not below this one; return all of them, and how many changed."""
        seen, changed = [], 0
        while not seen or seen[-1] < last:
            try:
                seen.append(self.pull().version)
            except VersionChanged:
                changed += 1
        return seen, changed

    def wait_version(self, at_least, timeout=...):
        return self.subscriber.wait_version(at_least, timeout)

    def hold(self, timeout=...):
        """Take leases and keep them."""
        self.parts = self.subscriber.pull_parts(timeout=timeout)
        next(self.parts)

    def let_go(self):
        for _ in self.parts:
            pass

    def explain(self):
        return self.subscriber.prepare().explain()

    def close(self):
        self.subscriber.close()
        self.endpoint.close()


def _serve(kind, pipe, arguments):
    try:
        thing = kind(*arguments)
        pipe.send((True, getattr(thing, "table", None)))
        while True:
            name, given = pipe.recv()
            try:
                pipe.send((True, getattr(thing, name)(*given)))
            except Exception as failure:
                pipe.send((False, failure.with_traceback(None)))
            if name == "close":
                return
    except EOFError:
        return
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send((False, AssertionError(traceback.format_exc())))
        raise


class Remote:
    """A Trainer or Engine in a process; its methods are called as its own."""

    def __init__(self, kind, *arguments) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=_serve, args=(kind, theirs, arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.table = None

    def ready(self):
        self.table = self.result()
        return self

    def start(self, name, *arguments):
        """Call a method; its result is fetched later."""
        self.pipe.send((name, arguments))

    def result(self, seconds=DEADLINE):
        assert self.pipe.poll(seconds), f"{self.process.name} gave no result in {seconds} s"
        ok, value = self.pipe.recv()
        if not ok:
            raise value
        return value

    def __getattr__(self, name):
        def call(*arguments):
            self.start(name, *arguments)
            return self.result()

        return call

    def signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self):
        """Stop the process, and return when all of its threads are."""
        self.signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def kill(self):
        self.process.kill()
        self.process.join(DEADLINE)

    def end(self):
        if self.process.is_alive():
            with contextlib.suppress(OSError):
                self.signal(signal.SIGCONT)
                self.start("close")
                self.process.join(5)
        self.kill()
