# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine that is fed by the weight transfer engine "onehop".

    python weights_program.py HOW MODEL CHECKPOINTS...

HOW is [bucket bytes, in place]: it loads MODEL, then publishes each checkpoint's weights; or
"loaded": it loads all of them by themselves. The last line that it prints is JSON: the tokens of
MODEL, and of each checkpoint.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file
from tiny_model import ENGINE

PROMPTS = [list(range(2, 40)), list(range(100, 117)), [7] * 9]


def make(model, **more):
    from vllm import LLM

    return LLM(model, **ENGINE, **more)


def generate(llm):
    from vllm import SamplingParams, TokensPrompt

    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS]
    found = llm.generate(prompts, sampling, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in found]


def loaded(model):
    llm = make(model)
    tokens = generate(llm)
    llm.llm_engine.engine_core.shutdown()
    return tokens


def fed(model, checkpoints, bucket_bytes, in_place):
    from onehop.weights.vllm_trainer import LLMClient, OnehopTrainerInitInfo
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import (
        ParamMeta,
        WeightSource,
        WeightTransferTrainerFactory,
    )

    class Weights(WeightSource):
        """Tensors of a checkpoint, always in the same memory."""

        def __init__(self):
            self.tensors = load_file(Path(checkpoints[0]) / "model.safetensors")

        def load(self, folder):
            for name, tensor in load_file(Path(folder) / "model.safetensors").items():
                self.tensors[name].copy_(tensor)

        def metadata(self):
            return [ParamMeta(name, one.dtype, tuple(one.shape)) for name, one in self]

        def __iter__(self):
            return iter(self.tensors.items())

    llm = make(model, weight_transfer_config=WeightTransferConfig(backend="onehop"))
    tokens = [generate(llm)]
    source = Weights()
    info = OnehopTrainerInitInfo(rank=0, bucket_bytes=bucket_bytes, in_place=in_place)
    trainer = WeightTransferTrainerFactory.trainer_init(info, client=LLMClient(llm), source=source)
    for folder in checkpoints:
        source.load(folder)
        trainer.send_weights()
        tokens.append(generate(llm))
    trainer.shutdown()
    llm.llm_engine.engine_core.shutdown()
    return tokens


def main():
    how, model, *checkpoints = sys.argv[1:]
    if how == "loaded":
        found = [loaded(one) for one in (model, *checkpoints)]
    else:
        bucket_bytes, in_place = json.loads(how)
        found = fed(model, checkpoints, bucket_bytes, in_place)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
