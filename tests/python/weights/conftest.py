# SPDX-License-Identifier: Apache-2.0
"""Trainers and engines that end with the test."""

import pytest
from trainers import Engine, Remote, Trainer


class Cluster:
    def __init__(self) -> None:
        self.all = []

    def trainers(self, boxes_of, kind=Trainer):
        """Start a trainer for each entry, a list of boxes by its name."""
        made = [Remote(kind, name, boxes) for name, boxes in boxes_of.items()]
        self.all += made
        return [one.ready() for one in made]

    def engines(self, tables, wants_of):
        """Start an engine for each entry, a list of wants by its name."""
        made = [Remote(Engine, name, tables, wants) for name, wants in wants_of.items()]
        self.all += made
        return [one.ready() for one in made]


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    for one in made.all:
        one.end()


@pytest.fixture
def made():
    """Makes trainers and engines, and closes them."""
    things = []

    def make(kind, *arguments, **more):
        things.append(kind(*arguments, **more))
        return things[-1]

    yield make
    for thing in reversed(things):
        thing.close()
