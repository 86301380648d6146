"""Kernels that carry a state along ragged sequences: a prompt and its decode steps agree, as `tpu` tensors."""

import numpy as np
import pytest
import torch

import systolic.kernels
from systolic.kernels.causal_conv1d import torch_op as _conv  # noqa: F401  these define the operators
from systolic.kernels.delta_prefill import torch_op as _prefill  # noqa: F401
from systolic.kernels.delta_step import torch_op as _step  # noqa: F401
from systolic.kernels.ssd_prefill import torch_op as _ssd_prefill  # noqa: F401
from systolic.kernels.ssd_step import torch_op as _ssd_step  # noqa: F401

CLOSE = dict(rtol=1e-5, atol=1e-5)
FORMS = ("auto", "interpret")
# Two sequences of 3 and 4 tokens, the second resumed; a third without tokens; one row of padding.
SEQUENCES = torch.tensor([4, 1, 0]), torch.tensor([0, 3, 7, 7]), torch.tensor([False, True, False])


def spread(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def on_tpu(*tensors):
    return [x.to("tpu") for x in tensors]


def delta_inputs(tokens, by_channel):
    """q, k, v, decay, beta of 2 heads of 8 x 4."""
    q, k = (torch.nn.functional.normalize(spread(seed, tokens, 2, 8), dim=-1) for seed in (1, 2))
    decay = -spread(4, *((tokens, 2, 8) if by_channel else (tokens, 2))).abs()
    return q, k, spread(3, tokens, 2, 4), decay, spread(5, tokens, 2).sigmoid()


def ssd_inputs(tokens):
    """x, dt, a, b, c, d, dt_bias of 4 heads of 8 x 16 in 2 groups."""
    return (spread(1, tokens, 4, 8), spread(2, tokens, 4), -spread(3, 4).exp(), spread(4, tokens, 2, 16),
            spread(5, tokens, 2, 16), spread(6, 4), spread(7, 4))  # fmt: skip


def check_token_by_token(run, step, state):
    """``run``: the prompt's (out, state) on SEQUENCES; ``step``(t, state, slot): those of a decode step of token t."""
    out, new = (x.cpu() for x in run(*on_tpu(state, *SEQUENCES)))
    want = state.clone()
    want[4] = 0
    for first, last, slot in ((0, 3, 4), (3, 7, 1)):
        for t in range(first, last):
            row, want = (x.cpu() for x in step(t, *on_tpu(want, torch.tensor([slot]))))
            torch.testing.assert_close(out[t : t + 1], row, **CLOSE)
    torch.testing.assert_close(new, want, **CLOSE)
    assert not out[7].any() and torch.equal(new[[0, 2, 3]], state[[0, 2, 3]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by_channel", [False, True])
def test_a_gated_delta_prompt_equals_its_tokens_one_by_one(form, by_channel):
    inputs = on_tpu(*delta_inputs(8, by_channel))

    def run(*given):
        with systolic.kernels.force(form):
            return torch.ops.systolic.delta_prefill(*inputs, *given, 0.5)

    def step(t, state, slot):
        return torch.ops.systolic.delta_step(*(x[t : t + 1] for x in inputs), state, slot, 0.5)

    check_token_by_token(run, step, spread(6, 5, 2, 8, 4))


@pytest.mark.parametrize("form", FORMS)
def test_a_state_space_prompt_equals_its_tokens_one_by_one(form):
    inputs = on_tpu(*ssd_inputs(8))

    def run(*given):
        with systolic.kernels.force(form):
            return torch.ops.systolic.ssd_prefill(*inputs, *given, True, 0.0, 2.0)

    def step(t, *given):
        token = [x[t : t + 1] if x.shape[0] == 8 else x for x in inputs]
        return torch.ops.systolic.ssd_step(*token, *given, True, 0.0, 2.0)

    check_token_by_token(run, step, spread(8, 5, 4, 8, 16))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_convolution_equals_pytorchs(form, width):
    """Also of sequences shorter than the kernel, whose state keeps inputs from before."""
    x, weight, bias, state = spread(1, 8, 6), spread(2, 6, width), spread(3, 6), spread(4, 5, width - 1, 6)
    slots, starts = torch.tensor([4, 1, 0, 2]), torch.tensor([0, 1, 3, 3, 7])
    resumed = torch.tensor([True, False, True, True])
    with systolic.kernels.force(form):
        given = on_tpu(x, weight, bias, state, slots, starts, resumed)
        out, new = (y.cpu() for y in torch.ops.systolic.causal_conv1d(*given, True))
    want = state.clone()
    for slot, first, last, goes_on in ((4, 0, 1, True), (1, 1, 3, False), (2, 3, 7, True)):
        seen = torch.cat([state[slot] * goes_on, x[first:last]])
        row = torch.nn.functional.conv1d(seen.T[None], weight[:, None], bias, groups=6)[0].T
        torch.testing.assert_close(out[first:last], torch.nn.functional.silu(row), **CLOSE)
        want[slot] = seen[1 - width :]
    assert torch.equal(new, want) and not out[7].any()


def test_a_convolution_without_bias_and_activation():
    x, weight = spread(1, 3, 6), spread(2, 6, 4)
    given = on_tpu(x, weight), on_tpu(torch.zeros(3, 3, 6), torch.arange(3), torch.arange(4), torch.ones(3).bool())
    out, state = torch.ops.systolic.causal_conv1d(*given[0], None, *given[1], False)
    torch.testing.assert_close(out.cpu(), x * weight[:, 3], **CLOSE)
    assert torch.equal(state.cpu()[:, 2], x) and not state.cpu()[:, :2].any()


def test_without_steps_skips_and_biases_the_state_stays():
    x, dt, a, b, c, _, _ = ssd_inputs(2)
    given = on_tpu(x, dt - 5, a, b, c), on_tpu(spread(8, 3, 4, 8, 16), torch.tensor([2, 0]))
    out, state = torch.ops.systolic.ssd_step(*given[0], None, None, *given[1], False, 0.0, 1.0)
    assert torch.equal(state.cpu(), given[1][0].cpu())
    want = torch.einsum("thpn,thn->thp", state.cpu()[[2, 0]], c.repeat_interleave(2, dim=1))
    torch.testing.assert_close(out.cpu(), want, **CLOSE)


def test_a_prompt_in_a_compiled_graph():
    given = on_tpu(*delta_inputs(5, False), torch.zeros(1, 2, 8, 4), torch.tensor([0]), torch.tensor([0, 5]),
                   torch.tensor([False]))  # fmt: skip

    @torch.compile(backend="tpu")
    def run(*given):
        out, state = torch.ops.systolic.delta_prefill(*given, 1.0)
        return out * 2, state

    out, state = run(*given)
    want, want_state = torch.ops.systolic.delta_prefill(*given, 1.0)
    torch.testing.assert_close(out.cpu(), want.cpu() * 2, **CLOSE)
    torch.testing.assert_close(state.cpu(), want_state.cpu(), **CLOSE)


@pytest.mark.parametrize("change, words", [
    ({"k": np.zeros((3, 1, 4), np.float32)}, "twice"),
    ({"v": np.zeros((3, 2, 4), np.float16)}, "all must be float32"),
    ({"decay": np.zeros((3, 2, 7), np.float32)}, "one of each channel"),
    ({"beta": np.zeros((3, 1), np.float32)}, r"beta is float32\(3, 1\)"),
    ({"state": np.zeros((1, 2, 4, 8), np.float32)}, r"\[slots, 2, 8, 4\]"),
    ({"slots": np.zeros(0, np.int32)}, "a sequence at least"),
    ({"starts": np.zeros(3, np.int32)}, r"starts is int32\(3,\); it must be int32 \[2\]"),
    ({"resumed": np.zeros(1, np.int32)}, r"bool \[1\]"),
])
def test_delta_prefill_refuses(change, words):
    from systolic.kernels.delta_prefill import delta_prefill

    row = np.zeros((3, 2, 8), np.float32)
    given = {"q": row, "k": row, "v": row[:, :, :4], "decay": row[:, :, 0], "beta": row[:, :, 0],
             "state": np.zeros((1, 2, 8, 4), np.float32), "slots": np.zeros(1, np.int32),
             "starts": np.zeros(2, np.int32), "resumed": np.zeros(1, bool), "scale": 1.0}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        delta_prefill(**(given | change))


@pytest.mark.parametrize("change, words", [
    ({"b": np.zeros((3, 3, 4), np.float32)}, "groups divides heads"),
    ({"x": np.zeros((3, 2, 8), np.float16)}, "all must be float32"),
    ({"dt": np.zeros((3, 1), np.float32)}, r"dt is float32\(3, 1\)"),
    ({"d": np.zeros(3, np.float32)}, r"d is float32\(3,\); it must be float32 \[2\]"),
    ({"state": np.zeros((1, 2, 4, 8), np.float32)}, r"\[slots, 2, 8, 4\]"),
    ({"dt_limit": (1.0, 0.5)}, "low <= high"),
    ({"slots": np.zeros(2, np.int64)}, "slots is int64"),
])
@pytest.mark.parametrize("name", ["ssd_step", "ssd_prefill"])
def test_state_space_kernels_refuse(name, change, words):
    import importlib

    shared = np.zeros((3, 1, 4), np.float32)
    given = {"x": np.zeros((3, 2, 8), np.float32), "dt": np.zeros((3, 2), np.float32), "a": -np.ones(2, np.float32),
             "b": shared, "c": shared, "d": None, "dt_bias": None, "state": np.zeros((1, 2, 8, 4), np.float32),
             "slots": np.zeros(3 if name == "ssd_step" else 1, np.int32)}  # fmt: skip
    if name == "ssd_prefill":
        given |= {"starts": np.zeros(2, np.int32), "resumed": np.zeros(1, bool)}
    given |= change
    if "b" in change:
        given["c"] = given["b"]
    with pytest.raises(ValueError, match=words):
        getattr(importlib.import_module(f"systolic.kernels.{name}"), name)(**given)


@pytest.mark.parametrize("change, words", [
    ({"x": np.zeros((3, 8), np.float16)}, "x is float16"),
    ({"weight": np.zeros((8, 5), np.float32)}, "W from 2 to 4"),
    ({"bias": np.zeros(7, np.float32)}, r"it must be \[8\]"),
    ({"state": np.zeros((2, 4, 8), np.float32)}, r"float32 \[slots, 3, 8\]"),
    ({"resumed": np.zeros(2, bool)}, r"bool \[1\]"),
])
def test_causal_conv1d_refuses(change, words):
    from systolic.kernels.causal_conv1d import causal_conv1d

    given = {"x": np.zeros((3, 8), np.float32), "weight": np.zeros((8, 4), np.float32), "bias": None,
             "state": np.zeros((2, 3, 8), np.float32), "slots": np.zeros(1, np.int32),
             "starts": np.zeros(2, np.int32), "resumed": np.zeros(1, bool), "silu": True}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        causal_conv1d(**(given | change))


def test_padding_alone_leaves_every_state():
    """Even where a sequence without tokens has no slot."""
    from systolic.kernels.delta_prefill import delta_prefill

    row, state = np.ones((20, 2, 8), np.float32), np.ones((3, 2, 8, 8), np.float32)
    with systolic.kernels.force("interpret"):
        out, new = delta_prefill(row, row, row, row[:, :, 0], row[:, :, 0], state, np.array([-1], np.int32),
                                 np.zeros(2, np.int32), np.zeros(1, bool), scale=1.0)  # fmt: skip
    assert not np.asarray(out).any() and (np.asarray(new) == state).all()
