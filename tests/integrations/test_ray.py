# SPDX-License-Identifier: Apache-2.0
"""Ray Direct Transport: `tensor_transport="nixl"` between actors, with tensors in main memory."""

import programs
import pytest

pytestmark = pytest.mark.usefixtures("ray")


def test_tensors_between_actors(library):
    seen = programs.run("ray_program.py", library, 480)
    assert all(library.is_origin(file) for file in seen.pop("library")), seen
    assert seen == {
        "method": True,
        "tree": True,
        "again": [True] * 20,
        "put": True,
        "views": [200.0 * 256, 3.0 * 256, 77.0 * 256],
        "both ways": [sum(range(5000)), sum(range(6000))],
        "holder killed": "raises",
        "after the kill": sum(range(100)),
    }
