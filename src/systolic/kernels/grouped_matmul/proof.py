"""What proves the grouped matmul: drawn cases, a float64 oracle, bounds of error, and the shapes to compile."""

from __future__ import annotations

import numpy as np

from systolic.kernels.generations import GENERATIONS
from systolic.kernels.grouped_matmul.kernel import grouped_matmul_pallas
from systolic.kernels.grouped_matmul.reference import grouped_matmul_reference
from systolic.kernels.grouped_matmul.tuning import Tuning, candidates, key_of
from systolic.kernels.quantized_matmul.proof import numpy_type
from systolic.kernels.quantized_matmul.tuning import depth_fits
from systolic.kernels.grouped_matmul.work import work_of
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof

TYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "int8"), ("bfloat16", "float8_e4m3fn"),
         ("float32", "int4"))  # fmt: skip
DEPTHS = ((128, 1), (256, 2), (96, 1), (256, 1))


def draw(seed: int, index: int) -> Case:
    """Types and shapes from the program's number, group sizes and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    x_type, type_ = TYPES[program % len(TYPES)]
    width, groups = DEPTHS[(program + program // len(TYPES)) % len(DEPTHS)]
    rows, columns = int(static.choice([1, 20, 64, 90])), int(static.choice([40, 128, 200]))
    experts = int(static.choice([1, 3, 8]))
    depth = int(static.choice([d for d in (128, width) if depth_fits(d, width, groups)]))
    tuning = Tuning(int(static.choice([16, 32])), min(columns, 128), depth)
    rng = np.random.default_rng((seed, program, turn))
    name, sizes = _sizes(rng, turn, rows, experts, tuning.rows)
    limits = {"int8": (-128, 128), "int4": (-8, 8)}.get(type_)
    shape = (experts, columns, width)
    weight = rng.integers(*limits, shape) if limits else rng.normal(size=shape).astype(np.float32)
    arrays = {
        "x": rng.normal(size=(rows, width)).astype(np.float32).astype(numpy_type(x_type)),
        "weight": weight.astype(numpy_type(type_)), "group_sizes": np.array(sizes, np.int32),
        "weight_scale": rng.uniform(0.01, 0.1, (experts, groups, columns)).astype(np.float32),
    }  # fmt: skip
    label = f"{name}; {x_type} x {type_}, {rows} x {width} -> {columns}, {groups} scales, groups {sizes}, {tuning}"
    return Case(label, arrays, {}, tuning)


def _sizes(rng, turn: int, rows: int, experts: int, block: int):
    """A name and the size of each group, for the turns of one program."""
    if turn == 0:
        return "nothing", [0] * experts
    if turn == 1:
        only = int(rng.integers(experts))
        return "one row", [int(e == only) for e in range(experts)]
    if turn == 2:
        only = int(rng.integers(experts))
        return "all in one group", [rows * int(e == only) for e in range(experts)]
    if turn == 3:  # groups end where blocks do
        cuts = np.sort(rng.integers(0, rows // block + 1, experts)) * block
        return "whole blocks", np.diff(cuts, prepend=0).tolist()
    total = rows if turn < 6 else int(rng.integers(0, rows + 1))
    name = "all rows" if turn < 6 else "rows left over"
    return f"{name} {turn}", rng.multinomial(total, rng.dirichlet(np.ones(experts) * 0.6)).tolist()


def _sums(case: Case, transform):
    """The result with ``transform`` over all factors, in float64."""
    a = case.arrays
    x, weight = transform(a["x"].astype(np.float64)), transform(a["weight"].astype(np.float64))
    scale = np.repeat(a["weight_scale"].astype(np.float64), weight.shape[2] // a["weight_scale"].shape[1], axis=1)
    out, start = np.zeros((x.shape[0], weight.shape[1])), 0
    for expert, size in enumerate(a["group_sizes"]):
        out[start : start + size] = x[start : start + size] @ (weight[expert].T * scale[expert])
        start += size
    return out


def oracle(case: Case) -> tuple:
    """Group by group with dequantized weights."""
    return (_sums(case, lambda values: values),)


def bound(case: Case, output: int) -> Bound:
    """As for a matmul of K products: each rounded to float32, then the result to its type."""
    width = case.arrays["x"].shape[1]
    relative = 2.0**-8 if case.arrays["x"].dtype == numpy_type("bfloat16") else 2.0**-20
    largest = float(_sums(case, np.abs).max())
    return Bound((width + 8) * 2.0**-24 * largest, relative, "K roundings of float32 sums, then of the result")


def _entry(model, rows, experts, width, columns, type_, groups=1) -> Entry:
    arguments = {
        "x": ((rows, width), "bfloat16"), "weight": ((experts, columns, width), type_),
        "group_sizes": ((experts,), "int32"), "weight_scale": ((experts, groups, columns), "float32"),
    }  # fmt: skip

    def blocks(generation):
        return candidates(GENERATIONS[generation], rows, columns, width, experts, groups)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, rows, experts, width, columns, type_, groups)

    label = f"{model}, {rows} rows x {width} -> {experts} x {columns}, {type_}, {groups} scales"
    key = key_of(rows, experts, columns, width, groups, "bfloat16", type_)
    return Entry("grouped_matmul", key, label, arguments, (), {}, blocks, work)


ENTRIES = (
    _entry("GPT-OSS-120B up", 256, 128, 2880, 5760, "bfloat16"),
    _entry("Qwen3-30B-A3B up", 512, 128, 2048, 1536, "int8"),
    _entry("Qwen3-30B-A3B down", 16384, 128, 768, 2048, "bfloat16"),
    _entry("Qwen3.5-397B up", 2560, 64, 4096, 2048, "float8_e4m3fn", groups=32),
)

PROOF = Proof(
    name="grouped_matmul",
    summary="Matmul of ragged groups of rows, each with its own weight (experts); 8- and 4-bit weights with scales.",
    pallas=lambda **given: (grouped_matmul_pallas(**given),),
    reference=lambda **given: (grouped_matmul_reference(**given),),
    draw=draw, oracle=oracle, bound=bound, entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
