# SPDX-License-Identifier: Apache-2.0
"""`mooncake`, whose `engine` is onehop here: see onehop.mooncake. The rest is the real one's."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
