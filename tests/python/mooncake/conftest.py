# SPDX-License-Identifier: Apache-2.0
"""Ports of a module's own: no other process of this machine takes one that a dead engine had."""

import gc
import os
import socket

import pytest
from mooncake_engines import HOST

COUNT = 40


def is_free(port):
    with socket.socket() as sock:
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


@pytest.fixture(scope="module", autouse=True)
def ports():
    """Set a range of ports, below those that the system gives out; return it.

    Meetings may take long, as the machine may be busy: what has to time out sets less.
    """
    gc.collect()  # ends agents that tests of other modules have left
    begin = 20000 + os.getpid() % 250 * COUNT
    for first in (*range(begin, 30000, COUNT), *range(20000, begin, COUNT)):
        if all(is_free(first + i) for i in range(COUNT)):
            break
    else:
        pytest.fail("no ports are free")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEHOP_PORT_RANGE", f"{first}-{first + COUNT - 1}")
        patch.setenv("ONEHOP_HELLO_TIMEOUT", "30")
        yield range(first, first + COUNT)


@pytest.fixture(autouse=True)
def _no_engine_stays():
    """End the engines that a test has left: open ones share their settings with the next."""
    yield
    gc.collect()
