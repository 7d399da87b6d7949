# SPDX-License-Identifier: Apache-2.0
"""Notifications of any size: cut, and joined again."""

import random
import threading

import pytest
from agents import finish, notes, run
from onehop.nixl.notes import PART, Joiner, Note

# Around the longest that one notification of the core carries, around two parts, and a long one.
SIZES = (0, 1, 2047, 2048, 2 * 2035, 2 * 2035 + 1, 200_000)


def pieces(message):
    class Peer:
        def __init__(self):
            self.seen = []

        def notify(self, piece):
            self.seen.append(piece)

    peer = Peer()
    Note(message).send(peer)
    return peer.seen


@pytest.mark.parametrize("size", SIZES)
def test_pieces_fit_and_join(size):
    message = random.Random(size).randbytes(size)
    made = pieces(message)
    assert max(map(len, made)) <= 2048
    if size < 2048:
        assert made == [b"\x01" + message]
        assert Note(message).piece == made[0]
        return
    assert Note(message).piece is None
    joiner = Joiner()
    assert all(joiner.add(1, piece) is None for piece in made[:-1])
    assert joiner.add(1, made[-1]) == message


def test_parts_of_several_wholes_alternate():
    joiner, one, two = Joiner(), pieces(b"1" * 5000), pieces(b"2" * 5000)
    wholes = [joiner.add(1, piece) for both in zip(one, two, strict=True) for piece in both]
    assert [whole for whole in wholes if whole] == [b"1" * 5000, b"2" * 5000]


def test_links_are_kept_apart_and_forgotten():
    joiner, (first, *rest) = Joiner(), pieces(b"1" * 4000)
    assert joiner.add(1, first) is None
    assert joiner.add(2, rest[-1]) != b"1" * 4000
    joiner.forget(1)
    assert joiner.add(1, rest[-1]) != b"1" * 4000


@pytest.mark.parametrize("data", [PART, PART + bytes(11)])
def test_a_part_without_a_head_is_dropped(data):
    assert Joiner().add(1, data) is None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["send_notif", "WRITE", "READ"])
def test_every_size_arrives(two, way, size):
    message = random.Random(size).randbytes(size)
    if way == "send_notif":
        two.a.send_notif("B", message)
    elif size:  # a transfer's empty notification is none
        run(two.a, two.transfer(way, message))
    else:
        return
    assert notes(two.b, 1) == {"A": [message]}


def test_long_and_short_ones_keep_their_order(two):
    sent = [bytes([number]) * (5000 if number % 3 else 10) for number in range(40)]
    for message in sent:
        two.a.send_notif("B", message)
    assert notes(two.b, len(sent)) == {"A": sent}


def test_threads_send_long_ones_at_once(two):
    sent = [bytes([number]) * 30_000 for number in range(4)]
    two.a.make_connection("B")
    threads = [threading.Thread(target=two.a.send_notif, args=("B", one)) for one in sent]
    for thread in threads:
        thread.start()
    found = notes(two.b, len(sent))
    for thread in threads:
        thread.join()
    assert sorted(found["A"]) == sent


def test_a_post_brings_its_own_long_notification(two):
    made = two.transfer("WRITE", b"1" * 5000)
    run(two.a, made)
    assert two.a.transfer(made, b"2" * 6000) in ("DONE", "PROC")
    finish(two.a, made)
    assert notes(two.b, 2) == {"A": [b"1" * 5000, b"2" * 6000]}
