# SPDX-License-Identifier: Apache-2.0
"""The command line tool: ``onehop info``, ``onehop doctor``, ``onehop bench``."""

from onehop.cli.main import main

__all__ = ["main"]
