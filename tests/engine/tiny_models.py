"""Tiny models with random weights of realistic scale, saved as Hugging Face folders.

Matrices have a standard deviation of 1.2 / sqrt(fan in), about 0.15 at these sizes, and norm weights
are 1 +- 0.2: activations stay near one, so the logits are far from flat (with `--load-format dummy`
they are, and every comparison of tokens passes or fails by chance). Embeddings that are also the
output matrix are smaller: otherwise a model mostly repeats its last token, whatever came before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

VOCABULARY = 258  # 256 bytes, then <s> and </s>
BEGIN, END = 256, 257
MAX_POSITION = 1024
WINDOW = 32  # of Gemma 3's sliding layers: shorter than most prompts of the tests

_COMMON = dict(
    vocab_size=VOCABULARY, max_position_embeddings=MAX_POSITION, bos_token_id=BEGIN, eos_token_id=END,
    pad_token_id=END, attention_dropout=0.0,
)  # fmt: skip


def _qwen2():
    from transformers import Qwen2Config

    return Qwen2Config(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, **_COMMON,
    )  # fmt: skip


def _qwen3():
    from transformers import Qwen3Config

    return Qwen3Config(
        hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, **_COMMON,
    )  # fmt: skip


def _llama():
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, **_COMMON,
    )  # fmt: skip


def _gemma3(window: int = WINDOW):
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=32, sliding_window=window,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        **_COMMON,
    )  # fmt: skip


def _gemma3_without_window():
    return _gemma3(window=MAX_POSITION)


def _mixtral():
    from transformers import MixtralConfig

    return MixtralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, sliding_window=None,
        tie_word_embeddings=False, **_COMMON,
    )  # fmt: skip


def _qwen3_moe():
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], tie_word_embeddings=False, **_COMMON,
    )  # fmt: skip


CONFIGS = {
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "llama": _llama,
    "gemma3": _gemma3,
    "gemma3_without_window": _gemma3_without_window,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
}


def save(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the model called `name` (a key of `CONFIGS`) into `folder`, float32, and return the folder.

    The same name and seed give the same weights. Raises KeyError for an unknown name.
    """
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    import torch
    from transformers import AutoModelForCausalLM

    config = CONFIGS[name]()
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _fill(model, seed, gemma=name.startswith("gemma3"))
    model.generation_config.eos_token_id = END
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def _fill(model, seed: int, gemma: bool) -> None:
    """Random values for every parameter; Gemma's norms multiply by 1 + weight."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter is embedding:
                parameter.copy_(noise * (0.04 if tied else 0.15))
            elif parameter.dim() > 1:
                parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)
            elif "norm" in name:
                # A larger last norm makes up for the small output matrix of a tied model.
                scale = 4.0 if tied and name == "model.norm.weight" else 1.0
                parameter.copy_(scale * (1.0 + 0.2 * noise.clamp(-2, 2)) - (1.0 if gemma else 0.0))
            else:
                parameter.copy_(noise * 0.1)


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: one token a byte, so that any text has one and only one encoding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(alphabet)}
    vocabulary |= {"<s>": BEGIN, "</s>": END}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                "pad_token": "</s>", "model_max_length": MAX_POSITION}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def token_prompts(count: int, lengths: list[int], seed: int) -> list[list[int]]:
    """`count` prompts of random byte tokens; prompt i has `lengths[i % len(lengths)]` tokens."""
    import random

    source = random.Random(seed)
    return [[source.randrange(256) for _ in range(lengths[i % len(lengths)])] for i in range(count)]
