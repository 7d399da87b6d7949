# SPDX-License-Identifier: Apache-2.0
"""SGLang's prefill-decode disaggregation over Mooncake's engine and over NIXL."""

import programs
import pytest
from conftest import Library

pytestmark = pytest.mark.usefixtures("sglang")

FAILED, SUCCESS = 0, 4  # KVPoll
DECODED = {"sent": [SUCCESS] * 8, "received": [SUCCESS] * 8, "wrong": 0}


def check(seen):
    assert seen["decodes"] == [DECODED, DECODED]
    killed = seen["killed"]
    assert killed["states"] == [FAILED]
    assert killed["seconds"] < 30


def test_over_nixl(library):
    seen = programs.run("sglang_program.py", library, 300, "nixl")
    assert library.is_origin(seen["library"])
    check(seen)


def test_over_mooncakes_engine():
    library = Library("onehop", kind="mooncake")
    seen = programs.run("sglang_program.py", library, 300, "mooncake")
    assert library.is_origin(seen["library"])
    check(seen)
