# SPDX-License-Identifier: Apache-2.0
"""vLLM's peer-to-peer tier of offloaded KV blocks."""

import programs
import pytest


def test_random_blocks_arrive_where_they_belong(library):
    pytest.importorskip("vllm", exc_type=ImportError)
    seen = programs.run("p2p_program.py", library)
    assert library.is_origin(seen["library"]), seen
    assert (seen["moved"], seen["wrong"], seen["touched"]) == (10_000, 0, 10_000)
