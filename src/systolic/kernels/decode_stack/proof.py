"""What proves the decoder stack: drawn cases, a float64 oracle, bounds of error, and the shapes to compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from systolic.kernels.decode_stack.kernel import decode_stack_pallas
from systolic.kernels.decode_stack.reference import decode_stack_reference
from systolic.kernels.decode_stack.tuning import Tuning, candidates, key_of
from systolic.kernels.decode_stack.work import work_of
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof

# hidden, q_heads, kv_heads, inner, buffers: a ring of three needs three blocks of each weight.
SIZES = ((256, 4, 2, 384, 1), (512, 2, 1, 256, 2), (512, 6, 2, 512, 2), (768, 4, 1, 384, 3))
# page, keys of a block: parts of a page, whole ones, several; the last two have one page for each sequence.
PAGES = ((16, 32), (32, 32), (64, 16), (16, 48), (128, 32), (144, 48))
DIM = 128
ROOM = 144
EPSILON = 1e-6


def draw(seed: int, index: int) -> Case:
    """Sizes and dtypes from the program's number, lengths and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    hidden, q_heads, kv_heads, inner, buffers = SIZES[(program + 1) % len(SIZES)]
    page_size, keys = PAGES[(program + program // len(PAGES)) % len(PAGES)]
    dtype = np.dtype((np.float32, ml_dtypes.bfloat16)[program % 2])
    layers, sequences = (4, 3, 1, 2)[program % 4], int(static.choice([1, 2, 5, 8]))
    qk_norm = bool(static.random() < 0.5)
    tuning = Tuning(128, 128, 128, buffers, keys, int(static.choice([1, 2, 3])))
    table_pages = -(-ROOM // page_size)
    room = table_pages * page_size
    rng = np.random.default_rng((seed, program, turn))
    label, lengths = _lengths(rng, turn, sequences, page_size, room)
    blocks = sequences * table_pages + 2

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    def weight(rows, columns):  # so that sums of products are of the size of one factor
        return (normal(layers, rows, columns) / np.sqrt(columns)).astype(dtype)

    def norm(width):
        return (1 + 0.1 * normal(layers, width)).astype(dtype)

    table = rng.permutation(blocks)[: sequences * table_pages].reshape(sequences, table_pages).astype(np.int32)
    cache = normal(layers, blocks, 2, kv_heads, page_size, DIM).astype(dtype)
    _hide_unseen(cache, table, lengths, page_size)
    angles = np.outer(np.arange(room), 10000.0 ** (-2 * np.arange(DIM // 2) / DIM))
    arrays = {
        "x": normal(sequences, hidden).astype(dtype), "input_norm": norm(hidden),
        "qkv": weight((q_heads + 2 * kv_heads) * DIM, hidden),
        "q_norm": norm(DIM) if qk_norm else np.zeros((0,), np.float32),
        "k_norm": norm(DIM) if qk_norm else np.zeros((0,), np.float32), "out": weight(hidden, q_heads * DIM),
        "post_norm": norm(hidden), "gate_up": weight(2 * inner, hidden), "down": weight(hidden, inner),
        "kv_cache": cache, "block_table": table, "seq_lens": np.array(lengths, np.int32),
        "cos_sin_cache": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
    }  # fmt: skip
    name = (f"{label}; {layers} layers of {hidden}, heads {q_heads}/{kv_heads}, inner {inner}, page {page_size}, "
            f"{dtype}, lengths {lengths}, {tuning}")  # fmt: skip
    return Case(name, arrays, {"epsilon": EPSILON, "scale": DIM**-0.5}, tuning)


def _lengths(rng, turn: int, sequences: int, page_size: int, room: int):
    """A name and the context length of each sequence."""
    some = [int(rng.integers(1, room + 1)) for _ in range(sequences)]
    if turn == 0:
        return "nothing", [0] * sequences
    if turn == 1:
        return "one token", [1] * sequences
    if turn == 2:  # the new token is the last of a page, the first or the second of one
        ends = [page_size * int(rng.integers(1, room // page_size + 1)) for _ in range(sequences)]
        return "page borders", [min(end + int(rng.integers(0, 3)), room) for end in ends]
    if turn == 3:
        return "maximum", [room] * sequences
    if turn == 4:
        return "some are padding", [0 if rng.random() < 0.5 else n for n in some]
    if turn == 5:
        return "one long", [1] * (sequences - 1) + [room]
    return "ordinary", some


def _hide_unseen(cache, table, lengths, page_size) -> None:
    """Put NaN where nobody may look: places past each sequence's earlier tokens, and blocks that belong to none."""
    seen = np.zeros((cache.shape[1], page_size), bool)
    for sequence, length in enumerate(lengths):
        position = np.arange(max(length - 1, 0))
        seen[table[sequence, position // page_size], position % page_size] = True
    cache[np.broadcast_to(~seen[None, :, None, None, :, None], cache.shape)] = np.nan


def _norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight


def oracle(case: Case) -> tuple:
    """(result, cache): layer by layer, sequence by sequence and head by head in float64, rounded nowhere."""
    a = {name: array.astype(np.float64) for name, array in case.arrays.items() if array.dtype != np.int32}
    table, lengths = case.arrays["block_table"], case.arrays["seq_lens"]
    cache, residual = a["kv_cache"], a["x"]
    layers, _, _, kv_heads, page_size, _ = cache.shape
    q_heads = a["out"].shape[2] // DIM
    cos, sin = np.split(a["cos_sin_cache"][np.maximum(lengths - 1, 0)][:, None, :], 2, axis=-1)

    def rotate(heads, weight):
        if a["q_norm"].size:
            heads = _norm(heads, weight)
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    for n in range(layers):
        heads = (_norm(residual, a["input_norm"][n]) @ a["qkv"][n].T).reshape(len(lengths), -1, DIM)
        of_q, of_k = (a[name][n] if a[name].size else None for name in ("q_norm", "k_norm"))
        queries = rotate(heads[:, :q_heads], of_q)
        keys, values = rotate(heads[:, q_heads : q_heads + kv_heads], of_k), heads[:, q_heads + kv_heads :]
        attended = np.zeros((len(lengths), q_heads, DIM))
        for s, length in enumerate(lengths):
            if not length:
                continue
            position = np.arange(length)
            page, place = table[s, position // page_size], position % page_size
            cache[n, page[-1], 0, :, place[-1]], cache[n, page[-1], 1, :, place[-1]] = keys[s], values[s]
            for head in range(q_heads):
                of_kv = head // (q_heads // kv_heads)
                score = cache[n, page, 0, of_kv, place] @ queries[s, head] * case.options["scale"]
                share = np.exp(score - score.max())
                attended[s, head] = share @ cache[n, page, 1, of_kv, place] / share.sum()
        residual = residual + attended.reshape(len(lengths), -1) @ a["out"][n].T
        gate, up = np.split(_norm(residual, a["post_norm"][n]) @ a["gate_up"][n].T, 2, axis=1)
        residual = residual + (gate / (1 + np.exp(-gate)) * up) @ a["down"][n].T
    return residual, cache


def bound(case: Case, output: int) -> Bound:
    """Bounds of (result, cache); values are of some units, and each layer adds rounding errors of its own size."""
    layers = case.arrays["qkv"].shape[0]
    if case.arrays["qkv"].dtype == np.float32:
        return Bound(1e-5 * layers, 1e-5, "each layer has six sums of up to 768 float32 products of some units")
    return Bound(2.0**-6 * layers, 2.0**-7, "each layer rounds ten operands to bfloat16, by 2^-9 of some units, "
                 "and the errors add up like random ones; then the result is rounded")  # fmt: skip


def _entry(model, sequences, context, layers, hidden, q_heads, kv_heads, inner, page_size, qk_norm) -> Entry:
    dim, pages = 128, -(-context // page_size)
    blocks = sequences * pages
    head_norm = ((layers, dim), "bfloat16") if qk_norm else ((0,), "float32")
    arguments = {
        "x": ((sequences, hidden), "bfloat16"), "input_norm": ((layers, hidden), "bfloat16"),
        "qkv": ((layers, (q_heads + 2 * kv_heads) * dim, hidden), "bfloat16"), "q_norm": head_norm, "k_norm": head_norm,
        "out": ((layers, hidden, q_heads * dim), "bfloat16"), "post_norm": ((layers, hidden), "bfloat16"),
        "gate_up": ((layers, 2 * inner, hidden), "bfloat16"), "down": ((layers, hidden, inner), "bfloat16"),
        "kv_cache": ((layers, blocks, 2, kv_heads, page_size, dim), "bfloat16"),
        "block_table": ((sequences, pages), "int32"), "seq_lens": ((sequences,), "int32"),
        "cos_sin_cache": ((context, dim), "float32"),
    }  # fmt: skip

    def choices(generation):
        return candidates(GENERATIONS[generation], hidden, q_heads * dim, kv_heads * dim, inner, 2, page_size, pages)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, sequences, context, layers, hidden, q_heads, kv_heads, dim,
                       inner, page_size)  # fmt: skip

    label = f"{model}, {layers} layers, {sequences} x {context}, page {page_size}"
    key = key_of(hidden, q_heads * dim, kv_heads * dim, inner, page_size, "bfloat16")
    return Entry("decode_stack", key, label, arguments, ("kv_cache",), {"epsilon": 1e-6, "scale": dim**-0.5}, choices,
                 work)  # fmt: skip


ENTRIES = (
    _entry("Qwen3-8B", 1, 4096, 36, 4096, 32, 8, 12288, 64, True),
    # The 16 GB of the smallest generation hold its weights and this cache.
    _entry("Qwen3-4B", 8, 4096, 36, 2560, 32, 8, 9728, 16, True),
    _entry("Llama-3.1-8B, contiguous", 1, 8192, 32, 4096, 32, 8, 14336, 8192, False),
)

PROOF = Proof(
    name="decode_stack",
    summary="One decode step through all layers of a dense decoder; the stream of weights never stops.",
    pallas=decode_stack_pallas, reference=decode_stack_reference, draw=draw, oracle=oracle, bound=bound,
    entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
