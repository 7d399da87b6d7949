# SPDX-License-Identifier: Apache-2.0
"""vLLM's transports of blocks over NIXL: its P2P tier writes, its encoder cache reads."""

import programs
import pytest

pytestmark = pytest.mark.usefixtures("vllm")


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("tier", {"wrong": 0, "touched": 10_000}),
        ("cache", {"wrong": 0, "notified": [f"read {number}" for number in range(7)]}),
    ],
)
def test_blocks_are_where_they_belong(library, transport, expected):
    seen = programs.run("block_transport_program.py", library, 240, transport)
    assert library.is_origin(seen.pop("library")), seen
    assert seen == expected
