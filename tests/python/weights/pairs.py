# SPDX-License-Identifier: Apache-2.0
"""Publishers and subscribers in the process of the test."""

import threading
import time
from concurrent.futures import Future, wait

import numpy as np
import onehop
from onehop.weights import Publisher, Subscriber


class Trainer:
    """A publisher with an endpoint of its own."""

    def __init__(self, name="p", value=1, size=64) -> None:
        self.endpoint = onehop.Endpoint()
        self.publisher = Publisher(self.endpoint, name, timeout=10)
        self.weights = np.full(size, value, np.int64)
        self.publisher.add("w", self.weights)
        self.table = self.publisher.seal()

    def publish(self, version):
        self.publisher.begin()
        self.weights[:] = version
        self.publisher.commit(version)

    def close(self):
        self.publisher.close(timeout=10)
        self.endpoint.close()


class Engine:
    """A subscriber with an endpoint of its own."""

    def __init__(self, *trainers, name="s", size=64) -> None:
        self.endpoint = onehop.Endpoint()
        tables = [trainer.table for trainer in trainers]
        self.subscriber = Subscriber(self.endpoint, tables, name=name, timeout=10)
        self.weights = np.zeros(size, np.int64)
        self.subscriber.want("w", self.weights)
        self.subscriber.prepare()

    def close(self):
        self.subscriber.close()
        self.endpoint.close()


def until(condition, what):
    """Wait until a condition holds."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.001)


class Parts:
    """A subscriber with an endpoint of its own, which pulls a tensor of 64 in quarters."""

    def __init__(self, trainer, name="s", timeout=10) -> None:
        self.endpoint = onehop.Endpoint()
        self.subscriber = Subscriber(self.endpoint, [trainer.table], name=name, timeout=timeout)
        self.quarters = np.zeros((4, 16), np.int64)
        for part, quarter in enumerate(self.quarters):
            self.subscriber.want("w", quarter, start=(16 * part,), part=part)

    def close(self):
        self.subscriber.close()
        self.endpoint.close()


class Begun:
    """A call in a thread of its own."""

    def __init__(self, call, *arguments) -> None:
        self._outcome = Future()
        threading.Thread(target=self._run, args=(call, *arguments), daemon=True).start()

    def _run(self, call, *arguments):
        try:
            self._outcome.set_result(call(*arguments))
        except BaseException as failure:
            self._outcome.set_exception(failure)

    @property
    def done(self):
        """Whether it has ended."""
        return self._outcome.done()

    def ends_within(self, seconds):
        """Wait for its end. Return whether it came."""
        return bool(wait([self._outcome], seconds).done)

    def result(self):
        """Return what the call returns, or raise its error."""
        return self._outcome.result(20)


def in_thread(call, *arguments):
    """Return the result of a call in a thread of its own, or raise its error."""
    return Begun(call, *arguments).result()
