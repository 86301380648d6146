"""Kernels that carry a state along ragged sequences: a prompt and its decode steps agree, as `tpu` tensors."""

import numpy as np
import pytest
import torch

import systolic.kernels
from systolic.kernels.delta_prefill import torch_op as _prefill  # noqa: F401  these define the operators
from systolic.kernels.delta_step import torch_op as _step  # noqa: F401

CLOSE = dict(rtol=1e-5, atol=1e-5)
FORMS = ("auto", "interpret")


def spread(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def on_tpu(*tensors):
    return [x.to("tpu") for x in tensors]


def delta_inputs(tokens, by_channel):
    """q, k, v, decay, beta of 2 heads of 8 x 4."""
    q, k = (torch.nn.functional.normalize(spread(seed, tokens, 2, 8), dim=-1) for seed in (1, 2))
    decay = -spread(4, *((tokens, 2, 8) if by_channel else (tokens, 2))).abs()
    return q, k, spread(3, tokens, 2, 4), decay, spread(5, tokens, 2).sigmoid()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by_channel", [False, True])
def test_a_prompt_equals_its_tokens_one_by_one(form, by_channel):
    """Two sequences of 3 and 4 tokens, the second resumed; a third without tokens; one row of padding."""
    inputs, state = delta_inputs(8, by_channel), spread(6, 5, 2, 8, 4)
    slots, starts, resumed = torch.tensor([4, 1, 0]), torch.tensor([0, 3, 7, 7]), torch.tensor([False, True, False])
    with systolic.kernels.force(form):
        given = on_tpu(*inputs, state, slots, starts, resumed)
        out, new = (x.cpu() for x in torch.ops.systolic.delta_prefill(*given, 0.5))
    want_state = state.clone()
    want_state[4] = 0
    for first, last, slot in ((0, 3, 4), (3, 7, 1)):
        for t in range(first, last):
            token = on_tpu(*(x[t : t + 1] for x in inputs), want_state, torch.tensor([slot]))
            step, want_state = (x.cpu() for x in torch.ops.systolic.delta_step(*token, 0.5))
            torch.testing.assert_close(out[t : t + 1], step, **CLOSE)
    torch.testing.assert_close(new, want_state, **CLOSE)
    assert torch.equal(out[7], torch.zeros(2, 4)) and torch.equal(new[[0, 2, 3]], state[[0, 2, 3]])


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


def test_padding_alone_leaves_every_state():
    """Even where a sequence without tokens has no slot."""
    from systolic.kernels.delta_prefill import delta_prefill

    row, state = np.ones((20, 2, 8), np.float32), np.ones((3, 2, 8, 8), np.float32)
    with systolic.kernels.force("interpret"):
        out, new = delta_prefill(row, row, row, row[:, :, 0], row[:, :, 0], state, np.array([-1], np.int32),
                                 np.zeros(2, np.int32), np.zeros(1, bool), scale=1.0)  # fmt: skip
    assert not np.asarray(out).any() and (np.asarray(new) == state).all()
