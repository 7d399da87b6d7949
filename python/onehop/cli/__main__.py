# SPDX-License-Identifier: Apache-2.0
"""``python -m onehop.cli``."""

from onehop.cli import main

if __name__ == "__main__":
    main()
