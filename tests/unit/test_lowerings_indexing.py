"""Indexing, scatter, search, view, shape and factory lowerings agree with PyTorch's CPU kernels."""

import importlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from lowering_harness import Call, capture, check, check_all, run
from systolic.ops import registry, strided
from torch.testing._internal.common_methods_invocations import op_db

MODULES = {f"systolic.ops.{n}" for n in ("indexing", "scatter", "search", "views", "shape", "factories")}
for module in MODULES:
    importlib.import_module(module)

FAMILIES = {
    "indexing": "index_add index_copy index_fill index_put index_select index_reduce take put embedding "
    "masked_scatter __getitem__ nn.functional.embedding take_along_dim",
    "scatter": "gather scatter scatter_add scatter_reduce",
    "search": "searchsorted bucketize histc bincount",
    "views": "as_strided as_strided_scatter diagonal diagonal_copy diagonal_scatter expand permute select "
    "select_scatter slice slice_scatter split split_with_sizes squeeze transpose unbind unfold unfold_copy "
    "unsqueeze view view_as_real view_as_complex t narrow_copy alias_copy",
    "shape": "cat stack flip roll repeat tril triu rot90 constant_pad_nd diag_embed block_diag "
    "nn.functional.pad nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.unfold "
    "nn.functional.fold nn.functional.channel_shuffle clone to",
    "factories": "full zeros ones zeros_like ones_like full_like new_full new_zeros new_ones arange linspace "
    "logspace eye scalar_tensor tril_indices triu_indices fill zero",
}
DTYPES = (torch.float32, torch.int64, torch.bool)
# The contents of these are not defined, so only their shape could be compared.
UNDEFINED = ("empty", "new_empty")


def ours(call: Call) -> bool:
    record = call.record()
    name = str(call.op).split(".")[1]
    if record is None or record.fn.__module__ not in MODULES or name.startswith(UNDEFINED):
        return False
    return not (name == "index" and any(t is not None and t.dtype == torch.bool for t in call.args[1]))


def sampled(names: str) -> list[Call]:
    """Up to two distinct calls for each operator overload and dtype."""
    kept, counts = [], {}
    for opinfo in op_db:
        if opinfo.name not in names.split():
            continue
        for dtype in DTYPES:
            if dtype not in opinfo.dtypes:
                continue
            backward = dtype.is_floating_point and opinfo.supports_autograd
            for call in capture(opinfo, dtype, samples=6, backward=backward, keep=ours):
                key = (str(call.op), dtype, opinfo.name)
                counts[key] = counts.get(key, 0) + 1
                if counts[key] <= 2:
                    kept.append(call)
    return kept


@pytest.mark.long  # the default tests run such samples through the device: tests/conformance
@pytest.mark.parametrize("family", FAMILIES)
def test_opinfo_samples(family):
    calls = sampled(FAMILIES[family])
    reached = {str(c.op).split(".")[1] for c in calls}
    assert len(reached) >= 4, f"the samples reach only {sorted(reached)}"
    failures = check_all(calls)
    assert not failures, "\n".join(failures)


X = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "indices",
    [
        [torch.tensor([1, -1, 0])],
        [None, torch.tensor([[0, 2], [-3, -1]])],
        [torch.tensor([0, 1]), torch.tensor([2, -1])],  # adjacent: in place
        [torch.tensor([0, 1]), None, torch.tensor([3, -4])],  # apart: moved to the front
        [torch.tensor([[0], [1]]), None, torch.tensor([1, 2, 3])],  # apart and broadcast
        [None, torch.tensor([[1], [2]]), torch.tensor([0, 3])],
        [torch.tensor(1)],
        [torch.empty(0, dtype=torch.int64)],
        [torch.tensor([1, 0], dtype=torch.int32)],
    ],
)
def test_index_places_dimensions_like_pytorch(indices):
    check("aten::index.Tensor", X, indices)
    values = torch.ops.aten.index.Tensor(X, indices) + 100
    check("aten::index_put", X, indices, values)
    check("aten::index_put", X, indices, values, True)


def test_duplicate_indices_accumulate():
    index = [torch.tensor([1, 1, 0, -1])]
    check("aten::index_put", torch.zeros(2, 3), index, torch.ones(3), True)
    check("aten::index_add", torch.zeros(3, 2), 0, torch.tensor([2, 2, 0]), torch.ones(3, 2), alpha=0.5)
    check("aten::scatter_add", torch.zeros(3), 0, torch.tensor([1, 1, 1, 0]), torch.arange(4.0))
    check("aten::put", torch.zeros(2, 2), torch.tensor([3, 3, -4]), torch.ones(3), True)
    grad, index = torch.ones(4, 2), torch.tensor([0, 2, 2, 1])
    check("aten::embedding_dense_backward", grad, index, 5, 1, False)
    check("aten::embedding_dense_backward", grad, index, 5, -1, True)


def test_put_with_a_mask():
    x, mask = torch.arange(6.0).reshape(2, 3), torch.tensor([[True, False, True], [False, False, True]])
    check("aten::index_put", x, [mask], torch.tensor(9.0))
    check("aten::index_put", x, [mask], torch.tensor([9.0]), True)
    check("aten::index_put", x, [mask], torch.tensor([7.0, 8.0, 9.0]))
    check("aten::index_put", x, [torch.tensor([False, True])], torch.tensor([5.0, 6.0, 7.0]))
    check("aten::index_put", x, [None, torch.tensor([True, False, True])], torch.tensor([[5.0], [6.0]]))


def test_data_dependent_masks_are_refused_by_name():
    mask = torch.tensor([True, False])
    with jax.enable_x64(True):
        with pytest.raises(NotImplementedError, match="nonzero"):
            registry.find("index", "Tensor").fn(jnp.ones((2, 2)), [jnp.asarray(mask.numpy())])
        with pytest.raises(NotImplementedError, match="nonzero"):
            indices = [jnp.asarray(mask.numpy()), jnp.array([0])]
            registry.find("index_put").fn(jnp.ones((2, 2)), indices, jnp.ones(1))


def test_reads_out_of_range_clamp_and_writes_are_dropped():
    x, far = torch.arange(4.0), torch.tensor([-9, 7, 2**32 + 1])
    assert run(Call("aten::index.Tensor", (x, [far])))[0].tolist() == [0.0, 3.0, 3.0]
    written = run(Call("aten::index_put", (x, [far], torch.full((3,), 5.0))))[0]
    assert written.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert run(Call("aten::gather", (x, 0, torch.tensor([9]))))[0].tolist() == [3.0]
    assert run(Call("aten::scatter.value", (x, 0, torch.tensor([9]), 5.0)))[0].tolist() == x.tolist()


def test_empty_tensors():
    none = torch.empty(0, dtype=torch.int64)
    check("aten::index_select", torch.ones(3, 2), 0, none)
    check("aten::embedding", torch.ones(3, 2), none)
    check("aten::gather", torch.ones(3), 0, none)
    check("aten::scatter.value", torch.ones(3), 0, none, 2.0)
    check("aten::index_put", torch.ones(3, 2), [none], torch.empty(0, 2))
    check("aten::cat", [torch.empty(0), torch.ones(2, 3)], 1)
    check("aten::roll", torch.empty(0, 2), [1], [0])
    check("aten::masked_scatter", torch.ones(2), torch.tensor([False, False]), torch.empty(0))


def test_scalars_without_dimensions():
    x = torch.tensor(3.0)
    check("aten::index_select", x, 0, torch.tensor([0]))
    check("aten::index_fill.int_Scalar", x, 0, torch.tensor([0]), 7.0)
    check("aten::scatter.src", x, 0, torch.tensor(0), torch.tensor(4.0))
    check("aten::gather", x, 0, torch.tensor(0))
    check("aten::unfold", x, 0, 1, 1)


def test_scatter_covers_only_the_corner_of_its_index():
    index = torch.tensor([[0, 2], [1, 1]])
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            check("aten::scatter_reduce.two", X[0], 1, index, X[1], reduce, include_self=include)
            ints, source = X[0].long(), X[1].long() - 20
            check("aten::scatter_reduce.two", ints, 1, index, source, reduce, include_self=include)


def test_nonzero_static_fills_and_cuts():
    x = torch.tensor([[0, 3], [4, 0]])
    check("aten::nonzero_static", x, size=3, fill_value=-1)
    check("aten::nonzero_static", x, size=1)


@pytest.mark.parametrize("source", [torch.float32, torch.int16, torch.int64, torch.uint8, torch.complex64])
@pytest.mark.parametrize("target", [torch.int32, torch.uint8, torch.float64, torch.bfloat16, torch.complex64])
def test_view_dtype_keeps_the_bits(source, target):
    raw = torch.arange(48, dtype=torch.uint8).reshape(3, 16).view(source)
    got = run(Call("aten::view.dtype", (raw, target)))[0]
    assert got.view(torch.uint8).tolist() == raw.view(target).view(torch.uint8).tolist()


def random_view(rng: random.Random) -> torch.Tensor:
    x = torch.arange(60.0).reshape(rng.choice([(3, 4, 5), (12, 5), (60,), (2, 5, 6)]))
    for _ in range(rng.randint(1, 4)):
        if not x.ndim or not x.numel():
            break
        d = rng.randrange(x.ndim)
        start = rng.randrange(x.shape[d])
        x = rng.choice(
            [
                lambda x=x, d=d: x.transpose(d, rng.randrange(x.ndim)),
                lambda x=x, d=d, s=start: x.narrow(d, s, rng.randint(1, x.shape[d] - s)),
                lambda x=x, d=d, s=start: x[(slice(None),) * d + (slice(s, None, rng.randint(1, 3)),)],
                lambda x=x, d=d, s=start: x.select(d, s),
                lambda x=x, d=d: x.unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:]),
            ]
        )()
    return x


def test_strided_windows_read_and_write_like_views():
    rng, base = random.Random(0), torch.arange(60.0)
    views = [random_view(rng) for _ in range(60)]
    windows = [(tuple(v.shape), tuple(v.stride()), v.storage_offset()) for v in views]
    new = [-1.0 - torch.arange(v.numel(), dtype=torch.float32).reshape(v.shape) for v in views]

    def both(flat, new):
        reads = [strided.read(flat, *w) for w in windows]
        return reads, [strided.write(flat, n, *w) if 0 not in w[1] else flat for w, n in zip(windows, new)]

    with jax.enable_x64(True):
        reads, writes = jax.jit(both)(jnp.asarray(base.numpy()), [jnp.asarray(n.numpy()) for n in new])
    for window, view, value, read, written in zip(windows, views, new, reads, writes):
        assert np.array_equal(read, view.numpy()), window
        wanted = base.clone()
        if 0 not in window[1]:
            wanted.as_strided(*window).copy_(value)
        assert np.array_equal(written, wanted.numpy()), window


def test_views_of_whole_rows_and_columns_need_no_gather():
    for view in (X.transpose(0, 2), X[:, 1], X[..., 1:3], X[:, ::2], X.expand(2, 2, 3, 4), X[1].t()[2:]):
        program = jax.make_jaxpr(lambda f, v=view: strided.read(f, v.shape, v.stride(), v.storage_offset()))
        text = str(program(jnp.zeros(24)))
        assert "gather" not in text, f"{view.shape} {view.stride()}: {text}"


def test_run_time_numbers_in_factories():
    check("aten::arange.start_step", -1.5, 4, 0.5)
    check("aten::arange.start_step", 10, -3, -4)
    check("aten::full", [2, 3], 7)
    check("aten::linspace", -3, 3, 7, dtype=torch.int32)
    check("aten::constant_pad_nd", torch.ones(2, 3), [1, -1, 0, 2], 2.5)
    check("aten::fill.Scalar", torch.ones(2, dtype=torch.int8), -3)
