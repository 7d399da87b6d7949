# SPDX-License-Identifier: Apache-2.0
"""Transfers between two processes: bytes, notifications, layouts, threads."""

import itertools
import threading
import time

import numpy as np
import pytest
from agents import Area, finish, notes, run, run_two, until
from onehop.nixl import transfers


def pattern(seed, size):
    return np.random.default_rng(seed).integers(0, 256, size, dtype="u1")


# ---- Many regions, both operations, notifications

REGIONS = 40
BLOCK = 512
BLOCKS = 64  # a region


def own_regions(side, *_):
    areas = [Area(side.agent, BLOCKS * BLOCK) for _ in range(REGIONS)]
    for seed, area in enumerate(areas):
        area.bytes[:] = pattern(seed, area.size)
    side.give((side.agent.get_agent_metadata(), [area.base for area in areas]))
    before = [area.bytes.copy() for area in areas]
    numbers = side.take()
    # The notification of the write comes behind all of its bytes.
    until(lambda: side.agent.check_remote_xfer_done("A", b"written"), "the notification")
    for number in numbers:
        region, block = divmod(number, BLOCKS)
        at = slice(block * BLOCK, (block + 1) * BLOCK)
        assert (areas[region].bytes[at] == pattern(1000 + number, BLOCK)).all()
        before[region][at] = areas[region].bytes[at]
    assert all((area.bytes == old).all() for area, old in zip(areas, before, strict=True))
    side.sync()
    # That of a read comes to the side that was read.
    assert notes(side.agent, 1) == {"A": [b"read"]}
    side.sync()
    return side.agent.get_new_notifs()


def rows_of(bases):
    rows = np.zeros((REGIONS, BLOCKS, 3), np.uint64)
    rows[:, :, 0] = np.array(bases, np.uint64)[:, None] + np.arange(BLOCKS, dtype=np.uint64) * BLOCK
    rows[:, :, 1] = BLOCK
    return rows.reshape(-1, 3)


def use_regions(side, strided):
    agent = side.agent
    areas = [Area(agent, BLOCKS * BLOCK) for _ in range(REGIONS)]
    metadata, bases = side.take()
    name = agent.add_remote_agent(metadata)
    numbers = np.random.default_rng(5).permutation(REGIONS * BLOCKS)[:1500]
    places = np.random.default_rng(6).permutation(REGIONS * BLOCKS)[:1500]
    for number, place in zip(numbers, places, strict=True):
        region, block = divmod(int(place), BLOCKS)
        at = slice(block * BLOCK, (block + 1) * BLOCK)
        areas[region].bytes[at] = pattern(1000 + int(number), BLOCK)
    ours, theirs = rows_of([area.base for area in areas]), rows_of(bases)
    if strided:
        ours, theirs = (
            np.array([[row[0], BLOCK, 0, BLOCK, BLOCKS] for row in rows[::BLOCKS]], np.uint64)
            for rows in (ours, theirs)
        )
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", ours, "DRAM")
    remote = agent.prep_xfer_dlist(name, theirs, "DRAM")
    side.give(numbers.tolist())
    write = agent.make_prepped_xfer("WRITE", local, places, remote, numbers.tolist(), b"written")
    run(agent, write)
    side.sync()
    for area in areas:
        area.bytes[:] = 0
    read = agent.make_prepped_xfer("READ", local, places, remote, numbers, b"read")
    run(agent, read)
    for number, place in zip(numbers, places, strict=True):
        region, block = divmod(int(place), BLOCKS)
        found = areas[region].bytes[block * BLOCK : (block + 1) * BLOCK]
        assert (found == pattern(1000 + int(number), BLOCK)).all()
    assert sum(int((area.bytes != 0).any(axis=None)) for area in areas) == REGIONS
    side.sync()
    return agent.explain(name).links[0][0]


@pytest.mark.parametrize("strided", [False, True])
def test_many_regions(transport, strided):
    here, left = run_two(use_regions, own_regions, strided)
    assert left == {}
    assert here == "host"


# ---- Layouts of connectors

LAYERS, HEADS, TOKENS, WIDTH = 3, 4, 32, 8  # of the model's KV cache, a head's bytes a token


def fill(layer, token, head):
    return pattern(layer * 10_000 + token * 10 + head, WIDTH)


class Cache:
    """The KV cache of one rank: blocks of tokens of some heads; HND or NHD within a block."""

    def __init__(self, agent, heads, block, layout) -> None:
        self.heads, self.block, self.layout = list(heads), block, layout
        self.areas = [Area(agent, TOKENS * len(self.heads) * WIDTH) for _ in range(LAYERS)]
        self.table = np.random.default_rng(block).permutation(TOKENS // block)

    def offset(self, token, head):
        """Return where a head's bytes of a token lie; blocks are in the order of the table."""
        place = int(self.table[token // self.block]) * self.block * len(self.heads)
        inside, column = token % self.block, self.heads.index(head)
        if self.layout == "HND":
            return (place + column * self.block + inside) * WIDTH
        return (place + inside * len(self.heads) + column) * WIDTH

    def write(self):
        for layer, area in enumerate(self.areas):
            for token in range(TOKENS):
                for head in self.heads:
                    at = self.offset(token, head)
                    area.bytes[at : at + WIDTH] = fill(layer, token, head)

    def check(self):
        for layer, area in enumerate(self.areas):
            for token in range(TOKENS):
                for head in self.heads:
                    at = self.offset(token, head)
                    assert (area.bytes[at : at + WIDTH] == fill(layer, token, head)).all()

    def shape(self):
        bases = [area.base for area in self.areas]
        return bases, self.heads, self.block, self.layout, self.table


def rows_for(bases, offset, tokens, heads):
    return [
        (base + offset(token, head), WIDTH, 0)
        for base in bases
        for token in tokens
        for head in heads
    ]


def prefill(side, blocks, layouts):
    """Two ranks of two heads each, as agents of one process: this one's and another."""
    from onehop.nixl import nixl_agent

    agents = [side.agent, nixl_agent("B1")]
    caches = [
        Cache(agent, range(2 * rank, 2 * rank + 2), blocks[0], layouts[0])
        for rank, agent in enumerate(agents)
    ]
    for cache in caches:
        cache.write()
    given = [
        (agent.get_agent_metadata(), cache.shape())
        for agent, cache in zip(agents, caches, strict=True)
    ]
    side.give(given)
    found = [notes(agent, 2) for agent in agents]
    side.sync()
    return found


def decode(side, blocks, layouts):
    """Four ranks of a head each; each reads its head from the rank that has it."""
    from onehop.nixl import nixl_agent

    given = side.take()
    agents = [side.agent, *(nixl_agent(f"A{rank}") for rank in range(1, HEADS))]
    caches = []
    for rank, agent in enumerate(agents):
        mine = Cache(agent, [rank], blocks[1], layouts[1])
        metadata, (bases, heads, block, layout, table) = given[rank // 2]
        # The other side's cache as it would be here: for its offsets only.
        other = Cache.__new__(Cache)
        other.heads, other.block, other.layout, other.table = heads, block, layout, table
        name = agent.add_remote_agent(metadata)
        ours = rows_for([area.base for area in mine.areas], mine.offset, range(TOKENS), [rank])
        theirs = rows_for(bases, other.offset, range(TOKENS), [rank])
        local = agent.prep_xfer_dlist("", ours, "DRAM")
        remote = agent.prep_xfer_dlist(name, theirs, "DRAM")
        numbers = np.arange(len(ours))
        made = agent.make_prepped_xfer("READ", local, numbers, remote, numbers, b"done %d" % rank)
        agent.transfer(made)
        caches.append((agent, mine, made))
    for agent, mine, made in caches:
        finish(agent, made)
        mine.check()
    side.sync()


@pytest.mark.parametrize("layouts", [("HND", "NHD"), ("NHD", "HND")])
@pytest.mark.parametrize("blocks", [(4, 16), (16, 4), (8, 8)])
def test_heterogeneous_ranks(blocks, layouts):
    """TP 2 to TP 4, block sizes with the ratio 4, and another order of tokens and heads."""
    _, found = run_two(decode, prefill, blocks, layouts)
    assert [sorted(itertools.chain(*one.values())) for one in found] == [
        [b"done 0", b"done 1"],
        [b"done 2", b"done 3"],
    ]


# ---- Strided lists


def strided_rows(area, first, stride):
    """Return rows of 16 blocks of 64 bytes, so far apart; 8 of them."""
    starts = [area.base + first + 16 * stride * row for row in range(8)]
    return np.array([(start, 64, 0, stride, 16) for start in starts], np.uint64)


def blocks_of(area, first, stride):
    places = first + np.arange(8 * 16)[:, None] * stride + np.arange(64)
    return area.bytes[places]


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
@pytest.mark.parametrize("prepared", [False, True])
def test_strided_lists_reach_the_engine_as_runs(two, monkeypatch, operation, prepared):
    seen = []
    prepare = transfers._part

    def spy(agent, put, local, there, wait):
        seen[:] = [(local.counts, local.strides, there.strides)]
        return prepare(agent, put, local, there, wait)

    monkeypatch.setattr(transfers, "_part", spy)
    two.theirs.bytes[:] = pattern(9, two.theirs.size)
    ours, theirs = strided_rows(two.ours, 7, 128), strided_rows(two.theirs, 1000, 192)
    if prepared:
        local = two.a.prep_xfer_dlist("", ours, "DRAM")
        remote = two.a.prep_xfer_dlist("B", theirs, "DRAM")
        # The last six rows of both.
        order = np.arange(32, 128)
        made = two.a.make_prepped_xfer(operation, local, order, remote, order, b"runs")
    else:
        lists = (two.a.get_xfer_descs(rows, "DRAM") for rows in (ours, theirs))
        made = two.a.initialize_xfer(operation, *lists, "B", b"runs")
    before = [two.ours.bytes.copy(), two.theirs.bytes.copy()]
    run(two.a, made)
    assert notes(two.b, 1) == {"A": [b"runs"]}
    ((counts, *strides),) = seen
    assert counts.tolist() == [16] * (6 if prepared else 8)
    assert [set(one.tolist()) for one in strides] == [{128}, {192}]
    moved = slice(32 if prepared else 0, None)
    ours, theirs = blocks_of(two.ours, 7, 128), blocks_of(two.theirs, 1000, 192)
    assert (ours[moved] == theirs[moved]).all()
    # Nothing else has changed.
    target = 1 if operation == "WRITE" else 0
    changed = np.flatnonzero([two.ours.bytes, two.theirs.bytes][target] != before[target])
    first, stride = ((7, 128), (1000, 192))[target]
    assert ((changed - first) % stride < 64).all()
    assert (changed >= first + moved.start * stride).all()
    assert two.a.check_xfer_state(made) == "DONE"


# ---- Both ways and many threads


def both_ways(side, threads, rounds):
    agent = side.agent
    ours, theirs = Area(agent), Area(agent)
    ours.bytes[:] = pattern(ord(agent.name), ours.size)
    side.give((agent.get_agent_metadata(), theirs.base))
    metadata, base = side.take()
    other = agent.add_remote_agent(metadata).decode()
    share = ours.size // threads
    failures, got = [], []

    def work(number):
        try:
            for turn in range(rounds):
                at = number * share
                rows = [(ours.base + at, share, 0)], [(base + at, share, 0)]
                lists = (agent.get_xfer_descs(row, "DRAM") for row in rows)
                made = agent.initialize_xfer("WRITE", *lists, other, b"%d %d" % (number, turn))
                run(agent, made)
                agent.release_xfer_handle(made)
                for messages in agent.get_new_notifs().values():
                    got.extend(messages)
        except BaseException as failure:
            failures.append(failure)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(50)
    assert not failures
    while len(got) < threads * rounds:
        got.extend(notes(agent, 1)[other])
    side.sync()
    assert (theirs.bytes == pattern(ord(other), theirs.size)).all()
    expected = [b"%d %d" % (number, turn) for number in range(threads) for turn in range(rounds)]
    assert sorted(got) == sorted(expected)
    side.sync()


def test_threads_of_both_sides(transport):
    run_two(both_ways, both_ways, 4, 25)


# ---- At rest


def rest(side):
    agent = side.agent
    area = Area(agent)
    side.give((agent.get_agent_metadata(), area.base))
    metadata, base = side.take()
    other = agent.add_remote_agent(metadata)
    lists = ([(area.base, 8, 0)], [(base, 8, 0)])
    made = agent.initialize_xfer(
        "READ", *(agent.get_xfer_descs(row, "DRAM") for row in lists), other, b"n"
    )
    run(agent, made)
    notes(agent, 1)
    side.sync()
    used, start = time.process_time(), time.monotonic()
    time.sleep(2)
    share = (time.process_time() - used) / (time.monotonic() - start)
    side.sync()
    return share


def test_nothing_spins(transport):
    """A thread that spins takes all of a CPU, or all that it can get of it."""
    for share in run_two(rest, rest):
        assert share < 0.1
