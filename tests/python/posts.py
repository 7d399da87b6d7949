# SPDX-License-Identifier: Apache-2.0
"""A post of a transfer of onehop.nixl beside a deregistration of its memory."""

import threading

from onehop.nixl.transfers import Transfer


def post_beside(monkeypatch, deregister, post):
    """Post; once it has checked its memory, deregister() runs in another thread. Return post()."""
    going, ended = threading.Event(), threading.Event()
    check, stop = Transfer._check_usable, Transfer.stop

    def end():
        deregister()
        ended.set()
        going.set()

    def check_and_wait(self):
        check(self)
        thread.start()
        assert going.wait(20)

    def tell_and_stop(self):
        going.set()
        stop(self)

    monkeypatch.setattr(Transfer, "_check_usable", check_and_wait)
    monkeypatch.setattr(Transfer, "stop", tell_and_stop)
    thread = threading.Thread(target=end)
    result = post()
    assert ended.wait(20)
    thread.join()
    return result
