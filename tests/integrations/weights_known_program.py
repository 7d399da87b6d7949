# SPDX-License-Identifier: Apache-2.0
"""Prints as JSON whether each of vLLM's registries knows the weight transfer engine "onehop"."""

import json

from onehop import vllm_plugin
from vllm.distributed.weight_transfer import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.plugins import load_general_plugins

load_general_plugins()
registries = (WeightTransferEngineFactory, WeightTransferTrainerFactory)
known = ["onehop" in one._registry for one in registries]
vllm_plugin.plugin()  # a second call changes nothing
print(json.dumps(known))
