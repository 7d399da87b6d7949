# SPDX-License-Identifier: Apache-2.0
"""SGLang's prefill-decode disaggregation over Mooncake's engine and over NIXL."""

import programs
import pytest
from conftest import Library
from sglang_program import FAILED, SUCCESS

pytestmark = pytest.mark.usefixtures("sglang")

DECODED = {"sent": [SUCCESS] * 8, "received": [SUCCESS] * 8, "wrong": 0}


def check(seen, library, processes):
    assert library.is_origin(seen["library"])
    assert seen["decodes"] == [DECODED, DECODED]
    assert seen["killed"] == [FAILED]
    # NIXL's libraries crash in their destructors, behind the end of Python.
    assert library.name == "nixl" or seen["exits"] == [0] * processes


def test_over_nixl(library):
    seen = programs.run("sglang_program.py", library, 300, "nixl")
    check(seen, library, processes=2)


def test_over_mooncakes_engine():
    library = Library("onehop", kind="mooncake")
    seen = programs.run("sglang_program.py", library, 300, "mooncake")
    check(seen, library, processes=3)
