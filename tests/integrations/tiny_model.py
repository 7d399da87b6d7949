# SPDX-License-Identifier: Apache-2.0
"""A Llama with random weights of a fixed seed: small, and its tokens depend on every KV block.

The standard deviation of the weights is ten times the usual 0.02, so that attention decides the
next token: otherwise the embeddings decide, and a wrong KV cache goes unnoticed.
"""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
# Arguments of vLLM's engines of this model.
ENGINE = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 1024,
    "block_size": 32,
    "num_gpu_blocks_override": 256,
    # Despite its name the share of the main memory, which must be free at the start. Without the
    # size of the cache, 17 MB here, the process itself would have to fit into that share, too.
    "gpu_memory_utilization": 0.05,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(length * 1000 + seed).choices(range(2, VOCABULARY), k=length)


def write(directory: Path, seed: int = 20261125, vocabulary: int = VOCABULARY) -> None:
    """Writes config.json and model.safetensors into `directory`."""
    hidden, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries = CONFIG["num_attention_heads"] * head
    keys = CONFIG["num_key_value_heads"] * head
    shapes = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "lm_head.weight": (vocabulary, hidden),
    }
    for index in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        shapes |= {
            layer + "self_attn.q_proj.weight": (queries, hidden),
            layer + "self_attn.k_proj.weight": (keys, hidden),
            layer + "self_attn.v_proj.weight": (keys, hidden),
            layer + "self_attn.o_proj.weight": (hidden, queries),
            layer + "mlp.gate_proj.weight": (inner, hidden),
            layer + "mlp.up_proj.weight": (inner, hidden),
            layer + "mlp.down_proj.weight": (hidden, inner),
        }
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()
    }
    norms = ["model.norm.weight"]
    for index in range(CONFIG["num_hidden_layers"]):
        norms += [
            f"model.layers.{index}.input_layernorm.weight",
            f"model.layers.{index}.post_attention_layernorm.weight",
        ]
    weights |= {name: torch.ones(hidden) for name in norms}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": vocabulary}))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
