# SPDX-License-Identifier: Apache-2.0
"""Questions of a subscriber, over links that the test ends."""

import pytest
from onehop.deadline import Deadline
from onehop.weights.hub import Kind, Message
from onehop.weights.inquiry import Gone, Inquiries, Target
from pairs import Begun, until


class Link:
    """A link whose messages go nowhere."""

    lost = False

    def send(self, message):
        pass


class Asked:
    """Two publishers, which were asked for the end of a lease."""

    def __init__(self) -> None:
        self.inquiries = Inquiries("s", 1)
        self.links = [Link(), Link()]
        self._targets = [Target(f"p{n}", n, link) for n, link in enumerate(self.links)]
        self._numbers = [self.inquiries.ask(one, Kind.CONFIRM, 0) for one in self._targets]

    def wait(self):
        """Wait for the answers in a thread."""
        waiting = Begun(self.inquiries.answers, self._numbers, Deadline(10), "the end")
        until(lambda: self.inquiries._changed._waiters, "the wait")
        return waiting

    def answer(self, publisher):
        message = Message(Kind.RELEASED, 1, publisher, self._numbers[publisher], 1)
        self.inquiries.received(self.links[publisher], message)


def test_an_answer_counts_although_its_link_has_ended():
    """The hub delivers what arrived over an ended link, then says that it has ended."""
    asked = Asked()
    waiting = asked.wait()
    asked.links[0].lost = True
    with asked.inquiries._changed:
        asked.answer(1)
        assert not asked.inquiries._changed._waiters
    # The waiting thread has looked at both questions.
    until(lambda: asked.inquiries._changed._waiters or waiting.done, "its next wait, or its end")
    asked.answer(0)
    asked.inquiries.link_ended(asked.links[0])
    assert [one.kind for one in waiting.result()] == [Kind.RELEASED] * 2


def test_a_link_that_ends_without_an_answer_is_gone():
    asked = Asked()
    waiting = asked.wait()
    asked.answer(1)
    asked.links[0].lost = True
    asked.inquiries.link_ended(asked.links[0])
    with pytest.raises(Gone) as caught:
        waiting.result()
    assert caught.value.names == ["p0"]
