"""The Pallas kernels against float64 in Pallas's interpreter: a sample here, all cases in the long tier."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels import checking, registry
from systolic.kernels.names import NAMES
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Proof

# Of each kernel: programs that differ in types and options, and turns that differ in lengths.
SAMPLE = {
    "paged_attention": ((0, (0, 3, 6)), (3, (2, 3))),
    "quantized_matmul": ((0, (0, 2)), (1, (0,)), (2, (0,)), (6, (0,))),
    "delta_step": ((0, (0,)), (1, (1,)), (2, (0,))),
    "ssd_step": ((0, (0,)), (3, (0, 1))),
    "ssd_prefill": ((0, (0, 3)), (1, (2, 7)), (3, (1, 5))),
    "causal_conv1d": ((0, (0, 1, 2, 6)), (1, (1, 4)), (2, (3, 7))),
    "delta_prefill": ((0, (0, 2, 3, 7)), (1, (1, 6)), (2, (3, 5)), (3, (2, 6))),
    "sampling": ((0, (0, 5)), (3, (7,))),
    "flash_attention": ((0, (0, 3, 5)), (1, (4,))),
    "decode_stack": ((0, (6, 4)), (1, (2,)), (2, (2,))),
    "mla_attention": ((0, (6, 2)), (2, (3,))),
    "grouped_matmul": ((0, (0, 3, 4)), (1, (4,)), (2, (6,))),
}
CASES = 200


@pytest.mark.parametrize("name", NAMES)
def test_sample(name):
    checker = checking.Checker(registry.proof(name))
    for program, turns in SAMPLE[name]:
        for turn in turns:
            outcome = checker.check(program * DRAWS_PER_PROGRAM + turn, seed=0)
            assert not outcome.problem, outcome


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", NAMES)
def test_all_cases(name):
    checker = checking.Checker(registry.proof(name))
    outcomes = [checker.check(index, seed=0) for index in range(CASES)]
    assert not [outcome for outcome in outcomes if outcome.problem]


def _copy_kernel(wait: bool, shift: float):
    """A kernel that copies x to VMEM by DMA and adds ``shift``; without ``wait`` it reads while the copy runs."""
    def body(x, out, buffer, semaphore):
        copy = pltpu.make_async_copy(x, buffer, semaphore)
        copy.start()
        if wait:
            copy.wait()
        out[...] = buffer[...] + shift
        if not wait:
            copy.wait()

    def pallas(x, *, tuning, interpret):
        call = pl.pallas_call(
            body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA], interpret=interpret,
        )  # fmt: skip
        return (call(x),)

    return Proof(
        name="copy", summary="", pallas=pallas, reference=lambda x: (jnp.asarray(x),),
        draw=lambda seed, index: Case("copy", {"x": np.ones((8, 128), np.float32)}, {}, None),
        oracle=lambda case: (case.arrays["x"].astype(np.float64),),
        bound=lambda case, output: Bound(1e-6, 0.0, "exact"), entries=(), tuning=type(None),
    )  # fmt: skip


def test_a_right_kernel_passes():
    assert checking.Checker(_copy_kernel(wait=True, shift=0.0)).check(0, 0).problem == ""


def test_a_race_is_reported():
    assert "race: " in checking.Checker(_copy_kernel(wait=False, shift=0.0)).check(0, 0).problem


def test_a_wrong_result_is_reported():
    assert "pallas, output 0" in checking.Checker(_copy_kernel(wait=True, shift=1e-3)).check(0, 0).problem


@pytest.mark.parametrize("got, want, share", [
    ([1.0, np.inf], [1.0, np.inf], 0.0),
    ([1.0, np.nan], [1.0, np.nan], 0.0),
    ([1.0, np.nan], [1.0, 2.0], np.inf),
    ([1.0, -np.inf], [1.0, np.inf], np.inf),
    ([1.5], [1.0], 2.0),
    ([1.0], [1.0, 1.0], np.inf),
])
def test_excess(got, want, share):
    assert checking.excess(np.array(got), np.array(want), Bound(0.15, 0.1, "a test")) == pytest.approx(share)


@pytest.mark.parametrize("name", NAMES)
def test_draws_cover_the_special_lengths_and_repeat(name):
    proof = registry.proof(name)
    labels = [proof.draw(0, index).label for index in range(DRAWS_PER_PROGRAM)]
    assert len(set(label.split(";")[0] for label in labels)) >= 5
    again = proof.draw(0, 3)
    for key, array in proof.draw(0, 3).arrays.items():
        np.testing.assert_array_equal(array.view(np.uint8), again.arrays[key].view(np.uint8))
    assert proof.draw(1, 3).label != labels[3] or name != "paged_attention"
