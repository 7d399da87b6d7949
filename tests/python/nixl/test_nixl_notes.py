# SPDX-License-Identifier: Apache-2.0
"""Notifications of any size."""

import random
import threading

import pytest
from agents import finish, notes, run

# Around what one part of the core carries, around two, and a long one.
SIZES = (0, 1, 2047, 2048, 4095, 4096, 200_000)


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
