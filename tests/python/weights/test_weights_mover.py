# SPDX-License-Identifier: Apache-2.0
"""Which operations of a subscriber may still write its tensors."""

import types

import onehop
import pytest
from onehop.deadline import Deadline
from onehop.weights.mover import Mover


class Posted:
    """A get of GPU memory that is in flight until it is released."""

    buffer_released = False

    def wait(self, timeout):
        raise KeyboardInterrupt


class Source:
    """A publisher that sends one batch."""

    def __init__(self, name) -> None:
        self.publisher, self.posted = name, Posted()
        batch = types.SimpleNamespace(post=lambda after: self.posted)
        self.batches = {0: [batch]}


def test_requests_of_all_publishers_are_awaited_after_ctrl_c():
    sources = [Source("a"), Source("b")]
    mover = Mover("s")
    plan = types.SimpleNamespace(on_gpu=True, sources=sources)
    finish = mover.start(plan, 0, None, Deadline(10))
    with pytest.raises(KeyboardInterrupt):
        finish()
    for source in sources:
        with pytest.raises(onehop.OperationError) as caught:
            mover.settle(Deadline(0))
        assert caught.value.status == onehop.Status.IN_DOUBT
        source.posted.buffer_released = True
    mover.settle(Deadline(0))
