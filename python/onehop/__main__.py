# SPDX-License-Identifier: Apache-2.0
"""``python -m onehop``: the command line tool."""

from onehop.cli import main

if __name__ == "__main__":
    main(prog_name="onehop")
