"""Convert a GGUF file of the `llama` architecture into a Hugging Face folder with float32 weights.

Written directly on the `gguf` reader: transformers' own GGUF loader parses the file three times and takes
several times as long. A test compares the two, tensor by tensor and token by token.

Run as `python -m systolic.models.gguf_llama FILE.gguf FOLDER`: nothing here needs torch.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

# GGUF's name of a tensor outside the layers -> the Hugging Face name.
OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# The same for what stands behind "blk.N." and "model.layers.N.".
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
# GGUF's token type of a control token such as <|im_start|>.
CONTROL_TOKEN = 3


class UnsupportedFile(ValueError):
    """The GGUF file is of a kind that this conversion does not cover."""


def _rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's order of rotary rows: [heads * d, in] with (even, odd) pairs -> first half, second half."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _hf_name(name: str) -> str:
    if name in OUTER_TENSORS:
        return OUTER_TENSORS[name]
    match = LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in LAYER_TENSORS:
        raise UnsupportedFile(
            f"tensor {name!r} has no place in a Llama model; convert this file with transformers"
        )
    return f"model.layers.{match[1]}.{LAYER_TENSORS[match[2]]}.weight"


def _weights(reader: Any, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Hugging Face name -> float32 array, for every tensor of the file."""
    from gguf import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        name = _hf_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = _rotary_halves(values, heads[kind])
        weights[name] = np.ascontiguousarray(values, dtype=np.float32)
    return weights


def _config(field: Any, tied: bool) -> dict[str, Any]:
    """The content of config.json."""
    if field("general.architecture") != "llama":
        raise UnsupportedFile(f"architecture {field('general.architecture')!r} is not 'llama'")
    heads = field("llama.attention.head_count")
    hidden = field("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": field("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
    }


def _write_tokenizer(field: Any, max_length: int, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (field("tokenizer.ggml.model"), field("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise UnsupportedFile(f"tokenizer {kind!r} is not ('gpt2', 'smollm')")
    names = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, merges))
    # "smollm" means one token a digit, then GPT-2's byte-level words.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = field("tokenizer.ggml.token_type")
    control = [name for name, kind in zip(names, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings = {
        f"{key}_token": names[field(f"tokenizer.ggml.{name}_token_id")] for key, name in special.items()
    }
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(field("tokenizer.chat_template"), encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def convert(gguf_file: Path, folder: Path) -> None:
    """Write config, generation config, tokenizer with chat template, and float32 weights into `folder`.

    Raises `UnsupportedFile` for another architecture, tokenizer kind or tensor name.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_file)

    def field(name: str) -> Any:
        if name not in reader.fields:
            raise UnsupportedFile(f"{gguf_file.name} has no field {name!r}")
        return reader.fields[name].contents()

    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = _config(field, tied)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(field, config["max_position_embeddings"], folder)
    save_file(_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Command line: GGUF file and target folder."""
    parser = argparse.ArgumentParser(description="convert a Llama GGUF file into a Hugging Face folder")
    parser.add_argument("gguf_file", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    convert(arguments.gguf_file, arguments.folder)


if __name__ == "__main__":
    main()
