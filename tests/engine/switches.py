"""The generator of engine configurations: the product of switches that must not change an answer."""

from __future__ import annotations

import itertools

# Each switch with its settings; the first of each is the plain one.
SWITCHES = {
    "model": ("llama", "gemma3", "qwen3_moe"),
    "chunk": (512, 200, 64),
    "caching": (False, True),
    "pool": ("ample", "tight"),
    "scheduling": ("sync", "async"),
    "execution": ("compiled", "eager"),
}
PLAIN = {name: settings[0] for name, settings in SWITCHES.items()}

MAX_MODEL_LEN = 192
BLOCK = 16
AMPLE = 512  # blocks
# One and a half requests of the greatest length. Gemma 3's layers form three groups with blocks of their own, of
# which two need only their window and a chunk: 39 blocks are enough for one request with the largest chunk.
TIGHT = {"llama": MAX_MODEL_LEN * 3 // 2 // BLOCK, "qwen3_moe": MAX_MODEL_LEN * 3 // 2 // BLOCK, "gemma3": 40}


def product() -> list[dict]:
    """Every combination of the settings."""
    return [dict(zip(SWITCHES, values)) for values in itertools.product(*SWITCHES.values())]


def pairwise() -> list[dict]:
    """A small list of combinations in which every pair of settings of two switches occurs; deterministic."""
    candidates = product()
    missing = set().union(*map(_pairs, candidates))
    chosen = []
    while missing:
        best = max(candidates, key=lambda candidate: len(_pairs(candidate) & missing))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(combination: dict) -> set:
    return {frozenset(pair) for pair in itertools.combinations(combination.items(), 2)}


def label(combination: dict) -> str:
    """A short name for test ids and messages."""
    caching = "cached" if combination["caching"] else "uncached"
    return "-".join(str(caching if name == "caching" else value) for name, value in combination.items())


def options(combination: dict, folder) -> dict:
    """Arguments of `LLM` for a combination, with the model saved in `folder`."""
    blocks = AMPLE if combination["pool"] == "ample" else TIGHT[combination["model"]]
    return dict(
        model=str(folder), max_model_len=MAX_MODEL_LEN, max_num_seqs=4, block_size=BLOCK,
        kv_cache_memory_bytes=256 << 20, num_gpu_blocks_override=blocks,
        max_num_batched_tokens=combination["chunk"], enable_prefix_caching=combination["caching"],
        async_scheduling=combination["scheduling"] == "async", enforce_eager=combination["execution"] == "eager",
    )  # fmt: skip
