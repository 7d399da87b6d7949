# SPDX-License-Identifier: Apache-2.0
"""vLLM's transports of blocks over NIXL: its P2P tier writes, its encoder cache reads."""

import programs
import pytest

pytestmark = pytest.mark.usefixtures("vllm")


def test_the_tier_writes_blocks_where_they_belong(library):
    seen = programs.run("p2p_tier_program.py", library)
    assert library.is_origin(seen["library"]), seen
    assert (seen["moved"], seen["wrong"], seen["touched"]) == (10_000, 0, 10_000)


def test_the_encoder_cache_reads_blocks_where_they_belong(library):
    seen = programs.run("encoder_cache_program.py", library)
    assert library.is_origin(seen["library"]), seen
    assert (seen["wrong"], seen["notified"]) == (0, [f"read {index}" for index in range(7)])
