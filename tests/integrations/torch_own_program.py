# SPDX-License-Identifier: Apache-2.0
"""torch's own tests of a backend over onehop: a program of unittest, given their names.

BACKEND, WORLD_SIZE and TEMP_DIR are torch's variables.
"""

import onehop.torch  # noqa: F401 - each rank imports this file, and so knows the backend
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestOnehop(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    run_tests()
