# SPDX-License-Identifier: Apache-2.0
"""The thread that listens for an agent."""

import threading

import onehop
import pytest
from onehop.nixl.inbox import Inbox


@pytest.mark.parametrize("listens", [True, False])
def test_it_ends_silently_with_its_endpoint(listens, caplog):
    # At the interpreter's exit, endpoints are closed before agents, whatever their threads do.
    endpoint, box, before = onehop.Endpoint(), Inbox(), threading.enumerate()
    if not listens:
        endpoint.close()
    box.watch(endpoint)
    started = set(threading.enumerate()) - set(before)
    endpoint.close()
    for thread in started:
        thread.join(20)
        assert not thread.is_alive()
    assert caplog.messages == []
