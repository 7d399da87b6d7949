# SPDX-License-Identifier: Apache-2.0
"""Text that is no UTF-8, of strangers and of the environment, in errors and facts."""

import os
import socket
import struct
import threading

import onehop
import pytest
from processes import run_alone

REFUSE = 3
REFUSED = -26
PROCESS = 8  # where an address has the process, and its texts: docs/protocol.md
TEXTS = 72
BAD = b"\xff\xfe no \x1b[2J\n text \xe2\x82\xac"
SHOWN = "\\xff\\xfe no \\x1b[2J\\x0a text \u20ac"


def checked(body):
    """An address with the sum that shows damage."""
    total = 0xCBF29CE484222325
    for byte in body:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return body + struct.pack("<Q", total)


def with_texts(address, **texts):
    """The address, as if of another process, with another label or names of its sockets."""
    place, parts = TEXTS, []
    for name in ("label", "unix_name", "unix_path"):
        size = struct.unpack_from("<I", address, place)[0]
        text = texts.get(name, address[place + 4 : place + 4 + size])
        parts.append(struct.pack("<I", len(text)) + text)
        place += 4 + size
    head = address[:PROCESS] + bytes(16) + address[PROCESS + 16 : TEXTS]
    return checked(head + b"".join(parts) + address[place:-8])


class Refuser:
    """Refuses whoever connects, with a text of its own."""

    def __init__(self, name):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(b"\0" + name)
        self.listener.listen()
        self.thread = threading.Thread(target=self.refuse, daemon=True)
        self.thread.start()

    def refuse(self):
        connection, _ = self.listener.accept()
        payload = struct.pack("<iI", REFUSED, len(BAD)) + BAD
        connection.sendall(struct.pack("<IBB", 2 + len(payload), REFUSE, 0) + payload)
        connection.recv(65536)
        connection.close()

    def close(self):
        self.thread.join()
        self.listener.close()


def test_the_text_of_an_unauthenticated_refusal(pair):
    name = b"onehop-test-%d" % os.getpid()
    refuser = Refuser(name)
    address = with_texts(pair.endpoints[1].address, unix_name=name)
    with pytest.raises(onehop.LinkError) as caught:
        pair.endpoints[0].connect(address, timeout=30)
    refuser.close()
    assert caught.value.status is onehop.Status.REFUSED
    assert SHOWN in str(caught.value)


def test_the_texts_of_an_address(pair):
    nowhere = with_texts(
        pair.endpoints[1].address,
        label=BAD,
        unix_name=b"nobody \xff\n",
        unix_path=b"/no/such/\xff\n",
    )
    place = nowhere.index(b"/no/such/\xff\n") + len(b"/no/such/\xff\n")
    # Nor by TCP: no host is left.
    nowhere = checked(nowhere[: place + 2] + struct.pack("<I", 0))
    with pytest.raises(onehop.LinkError) as caught:
        pair.endpoints[0].connect(nowhere, timeout=30)
    text = str(caught.value)
    assert caught.value.status is onehop.Status.UNREACHABLE
    assert SHOWN in text
    assert "unix:@nobody \\xff\\x0a" in text
    assert "unix:/no/such/\\xff\\x0a" in text


def make_an_endpoint_with_a_wrong_variable():
    os.environb[b"ONEHOP_MAX_PENDING"] = b"\xff\xfe"
    with pytest.raises(onehop.EndpointError) as caught:
        onehop.Endpoint()
    assert caught.value.status is onehop.Status.CONFIG
    assert "\\xff\\xfe" in str(caught.value)
    del os.environb[b"ONEHOP_MAX_PENDING"]


def test_a_variable_that_is_no_text():
    run_alone(make_an_endpoint_with_a_wrong_variable)
