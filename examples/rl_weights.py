# SPDX-License-Identifier: Apache-2.0
"""A loop of reinforcement learning: a toy trainer, and vLLM with fresh weights after each step.

    pip install '.[weights]' vllm && python examples/rl_weights.py

The reward is the share of even tokens. The last line tells it for each round.
"""

import tempfile

import torch
from onehop.weights.vllm_trainer import LLMClient, OnehopTrainerInitInfo
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

PROMPT, ROUNDS = [1, 2, 3, 4], 4


def train(policy: LlamaForCausalLM, optimizer: torch.optim.Optimizer, answers: list) -> None:
    """Make answers with more even tokens more likely (REINFORCE with a mean baseline)."""
    tokens = torch.tensor(answers)
    reward = (tokens % 2 == 0).float().mean(dim=1)
    whole = torch.cat([torch.tensor([PROMPT]).expand(len(tokens), -1), tokens], dim=1)
    chances = policy(whole).logits[:, len(PROMPT) - 1 : -1].log_softmax(-1)
    chosen = chances.gather(2, tokens[..., None]).sum(dim=(1, 2))
    loss = -(chosen * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:
    """Run the loop."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes, **heads))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    with tempfile.TemporaryDirectory() as folder:
        policy.save_pretrained(folder)
        llm = LLM(
            folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=128,
            gpu_memory_utilization=0.05,  # on a CPU: share of the main memory
            kv_cache_memory_bytes=64 << 20,
            enforce_eager=True,
            enable_prefix_caching=False,
            weight_transfer_config=WeightTransferConfig(backend="onehop"),
        )
    trainer = WeightTransferTrainerFactory.trainer_init(
        OnehopTrainerInitInfo(rank=0, in_place=True),
        client=LLMClient(llm),
        source=ModuleSource(policy),
    )
    sampling = SamplingParams(n=32, max_tokens=8, ignore_eos=True, detokenize=False, seed=1)
    rewards = []
    for _ in range(ROUNDS):
        found = llm.generate(TokensPrompt(prompt_token_ids=PROMPT), sampling, use_tqdm=False)
        answers = [list(one.token_ids) for one in found[0].outputs]
        rewards.append(sum(token % 2 == 0 for one in answers for token in one) / (32 * 8))
        train(policy, optimizer, answers)
        trainer.send_weights()
    trainer.shutdown()
    llm.llm_engine.engine_core.shutdown()
    print("rewards:", *(f"{reward:.3f}" for reward in rewards))


if __name__ == "__main__":
    main()
