"""What proves the quantized matmul: drawn cases, a float64 oracle, bounds of error, and the shapes to compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from systolic.kernels.generations import GENERATIONS
from systolic.kernels.quantized_matmul.kernel import quantized_matmul_pallas
from systolic.kernels.quantized_matmul.reference import quantized_matmul_reference
from systolic.kernels.quantized_matmul.tuning import Tuning, candidates, depth_fits, key_of
from systolic.kernels.quantized_matmul.work import work_of
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof

# Types of x and of the weight.
TYPES = (("bfloat16", "int8"), ("int8", "int8"), ("float8_e4m3fn", "float8_e4m3fn"), ("float32", "int4"),
         ("bfloat16", "float8_e4m3fn"), ("float32", "int8"), ("bfloat16", "int4"),
         ("float32", "float8_e5m2"))  # fmt: skip
# (K, groups): one scale, blocks of 128, odd sizes.
DEPTHS = ((256, 1), (384, 3), (128, 1), (160, 1), (512, 4), (96, 2), (1, 1), (2304, 1))


def numpy_type(name: str):
    """NumPy's dtype of that name, with the narrow ones."""
    return np.dtype(getattr(ml_dtypes, name, name))


def draw(seed: int, index: int) -> Case:
    """Types and sizes from the program's number, values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    x_type, type_ = TYPES[program % len(TYPES)]
    width, groups = DEPTHS[(program + program // len(TYPES)) % len(DEPTHS)]
    rows, columns = int(static.choice([1, 3, 16, 33, 70])), int(static.choice([1, 24, 128, 200, 300]))
    depth = int(static.choice([d for d in (128, 256, 384, width) if depth_fits(d, width, groups)]))
    tuning = Tuning(min(rows, int(static.choice([16, 64, 128]))), min(columns, int(static.choice([128, 256]))), depth)
    quantized = x_type == type_
    x_groups = groups if quantized and static.random() < 0.5 else 1
    rng = np.random.default_rng((seed, program, turn))
    scale = rng.uniform(0.001, 0.02, (groups, columns)).astype(np.float32)
    weight = _values(rng, (columns, width), type_, turn)
    x = _values(rng, (rows, width), x_type, turn)
    x_scale = np.ones((1, rows), np.float32)
    if quantized:
        x_scale = rng.uniform(0.001, 0.02, (x_groups, rows)).astype(np.float32)
    options = {"out_dtype": str(static.choice(["float32", "bfloat16"])) if quantized else x_type}
    name = {2: "largest", 3: "zeros", 4: "a single one"}.get(turn, "ordinary")
    label = f"{name} {turn}; {x_type} x {type_}, {rows} x {width} -> {columns}, {groups} groups, x {x_groups}, {tuning}"
    return Case(label, {"x": x, "weight": weight, "weight_scale": scale, "x_scale": x_scale}, options, tuning)


def _values(rng, shape, name: str, turn: int):
    """Values over the type's range; turn 2: all the largest in size, 3: zeros, 4: a single one."""
    dtype = numpy_type(name)
    limits = {"int8": (-128, 127), "int4": (-8, 7)}.get(name)
    if turn == 3:
        return np.zeros(shape, dtype)
    if turn == 4:
        values = np.zeros(shape, np.float32)
        values[tuple(int(rng.integers(n)) for n in shape)] = 1
        return values.astype(dtype)
    if turn == 2 and limits:
        return np.full(shape, limits[0], np.int32).astype(dtype)
    if limits:
        return rng.integers(limits[0], limits[1] + 1, shape).astype(dtype)
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


def oracle(case: Case) -> tuple:
    """The product of the dequantized matrices in float64."""
    a = case.arrays
    return (_dequantized(a["x"], a["x_scale"]) @ _dequantized(a["weight"], a["weight_scale"]).T,)


def _dequantized(values, scale):
    spread = np.repeat(scale.astype(np.float64).T, values.shape[1] // scale.shape[0], axis=1)
    return values.astype(np.float64) * spread


def bound(case: Case, output: int) -> Bound:
    """A sum of K products, each rounded, in float32: K 2^-24 of the sum of sizes; then the result's own rounding."""
    a = case.arrays
    sizes = np.abs(_dequantized(a["x"], a["x_scale"])) @ np.abs(_dequantized(a["weight"], a["weight_scale"])).T
    width = a["x"].shape[1]
    relative = 2.0**-8 if case.options["out_dtype"] == "bfloat16" else 2.0**-20
    return Bound(float((width + 8) * 2.0**-24 * sizes.max()), relative,
                 "K roundings of float32 sums, then of the result")  # fmt: skip


def _entry(model, rows, width, columns, x_type, type_, groups=1, x_groups=1) -> Entry:
    quantized = x_type == type_
    arguments = {
        "x": ((rows, width), x_type), "weight": ((columns, width), type_),
        "weight_scale": ((groups, columns), "float32"),
        "x_scale": ((x_groups, rows), "float32"),
    }  # fmt: skip
    options = {"out_dtype": "bfloat16"}

    def blocks(generation):
        return candidates(GENERATIONS[generation], rows, columns, width, groups)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, rows, width, columns, x_type if quantized else "bfloat16", type_,
                       groups)  # fmt: skip

    label = f"{model}, {rows} x {width} -> {columns}, {x_type} x {type_}, {groups} scales"
    key = key_of(rows, columns, width, groups, x_type, type_)
    return Entry("quantized_matmul", key, label, arguments, (), options, blocks, work)


ENTRIES = (
    _entry("Llama-3.1-8B up", 64, 4096, 14336, "bfloat16", "int8"),
    _entry("Llama-3.1-8B down", 1, 14336, 4096, "bfloat16", "int4", groups=112),
    _entry("Llama-3.1-8B up", 2048, 4096, 14336, "int8", "int8"),
    _entry("Qwen3-32B up", 64, 5120, 25600, "float8_e4m3fn", "float8_e4m3fn"),
    _entry("Qwen3-32B down", 256, 25600, 5120, "float8_e4m3fn", "float8_e4m3fn", groups=200, x_groups=200),
    _entry("Qwen3-32B o", 8, 8192, 5120, "bfloat16", "float8_e4m3fn"),
)

PROOF = Proof(
    name="quantized_matmul",
    summary="Matmul with int8, int4 or fp8 weights: weight-only or quantized activations; scales by channel or block.",
    pallas=lambda **given: (quantized_matmul_pallas(**given),),
    reference=lambda **given: (quantized_matmul_reference(**given),),
    draw=draw, oracle=oracle, bound=bound, entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
