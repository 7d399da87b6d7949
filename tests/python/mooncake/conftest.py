# SPDX-License-Identifier: Apache-2.0
"""Ports of a test's own: no other process of this machine takes one that a dead engine had."""

import os
import socket

import pytest
from engines import HOST

COUNT = 10


def is_free(port):
    with socket.socket() as sock:
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let meetings take long: the machine may be busy. What has to time out sets less."""
    monkeypatch.setenv("ONEHOP_HELLO_TIMEOUT", "30")


@pytest.fixture(autouse=True)
def ports(monkeypatch):
    """Set a range of ports, below those that the system gives out; return it."""
    begin = 20000 + os.getpid() * 37 % 1000 * COUNT
    for first in (*range(begin, 30000, COUNT), *range(20000, begin, COUNT)):
        if all(is_free(first + i) for i in range(COUNT)):
            monkeypatch.setenv("ONEHOP_PORT_RANGE", f"{first}-{first + COUNT - 1}")
            return range(first, first + COUNT)
    return pytest.fail("no ports are free")
