"""The memory-bandwidth floor of decoding: bytes of weights a token over the measured read bandwidth."""

from __future__ import annotations

import json
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def read_bandwidth(size: int = 1 << 30, threads: int | None = None, rounds: int = 5) -> float:
    """Bytes/s at which `threads` threads (default: every core) read `size` bytes, best of `rounds`.

    Each thread takes the maximum of its share as int32, which NumPy does with the widest vectors of
    the machine and without the interpreter lock.  The first pass (page faults) is not counted.
    """
    threads = threads or os.cpu_count() or 1
    values = np.ones(size // 4, np.int32)
    parts = np.array_split(values, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.max, parts))
        for _ in range(rounds):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, values.nbytes / (time.perf_counter() - started))
    return best


def decode_bytes(model: Path, width: int = 4) -> int:
    """Bytes of weights that one decoded token reads, at `width` bytes a value.

    Counts every tensor of the safetensors files in `model`.  An input embedding that is not also the
    output head is left out, as decoding reads one row of it.  Raises FileNotFoundError without weights.
    """
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no safetensors file in {model}")
    config = json.loads((model / "config.json").read_text())
    tied = config.get("tie_word_embeddings", True)
    total = 0
    for path in files:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name == "__metadata__" or (not tied and name.endswith("embed_tokens.weight")):
                continue
            # A file may hold a tied head twice: it is read once a token all the same.
            if tied and name == "lm_head.weight":
                continue
            begin, end = entry["data_offsets"]
            total += (end - begin) // _WIDTHS.get(entry["dtype"], 1) * width
    return total


def decode_floor(model: Path, bandwidth: float, width: int = 4) -> float:
    """Seconds a decoded token takes at least when the weights come from memory at `bandwidth` bytes/s."""
    return decode_bytes(model, width) / bandwidth
