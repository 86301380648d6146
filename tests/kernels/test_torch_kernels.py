"""Kernels as PyTorch operators on `tpu` tensors, and vLLM's attention with the Pallas form in the interpreter."""

import numpy as np
import pytest
import torch

import systolic.kernels
from systolic import settings
from systolic.kernels import registry
from systolic.kernels.decode_stack import torch_op as _stack  # noqa: F401  these define the operators
from systolic.kernels.delta_step import torch_op as _delta  # noqa: F401
from systolic.kernels.flash_attention import torch_op as _flash  # noqa: F401
from systolic.kernels.grouped_matmul import torch_op as _grouped  # noqa: F401
from systolic.kernels.mla_attention import torch_op as _latent  # noqa: F401
from systolic.kernels.quantized_matmul import torch_op as _quantized  # noqa: F401
from systolic.kernels.sampling import torch_op as _sampling  # noqa: F401

# Float32 sums of 64 products of a few units.
CLOSE = dict(rtol=1e-5, atol=1e-4)


def spread(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("form", ["auto", "reference", "interpret"])
def test_quantized_matmul_equals_the_dequantized_product(form):
    x, weight = spread(5, 64), torch.randint(-128, 128, (24, 64), dtype=torch.int8)
    scale = torch.rand(2, 24) + 0.5
    with systolic.kernels.force(form):
        got = torch.ops.systolic.quantized_matmul(x.to("tpu"), weight.to("tpu"), scale.to("tpu"), None, torch.float32)
    want = x @ (weight.float() * scale.T.repeat_interleave(32, dim=1)).T
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-2)  # values of some thousands


def test_packed_four_bit_weights_have_the_even_column_in_the_low_half():
    whole = torch.randint(-8, 8, (6, 10), dtype=torch.int8)
    packed = ((whole[:, 0::2] & 15) | ((whole[:, 1::2] & 15) << 4)).view(torch.uint8)
    x, scale = spread(3, 10), torch.rand(1, 6)
    got = torch.ops.systolic.quantized_matmul(x.to("tpu"), packed.to("tpu"), scale.to("tpu"), None, torch.float32)
    torch.testing.assert_close(got.cpu(), x @ (whole.float() * scale.T).T, **CLOSE)


def test_quantized_activations():
    from systolic.kernels.quantized_matmul import quantize_rows, quantized_matmul

    x, weight = spread(7, 64).numpy(), spread(9, 64).numpy()
    values, scales = quantize_rows(x, np.int8, groups=2)
    weight_values, weight_scales = quantize_rows(weight, np.int8, groups=2)
    got = quantized_matmul(values, weight_values, weight_scales, scales, out_dtype=np.float32)
    # Each of 64 factors is off by at most half a step of 1/127 of the largest value, about 3.
    np.testing.assert_allclose(np.asarray(got), x @ weight.T, atol=64 * 3 * 3 * 2 / 254)
    assert np.abs(np.asarray(values)).max() == 127


def test_grouped_matmul_in_a_compiled_graph():
    x, weight = spread(12, 64), spread(3, 24, 64)
    sizes = torch.tensor([5, 0, 4])

    @torch.compile(backend="tpu")
    def run(x, weight, sizes):
        return torch.ops.systolic.grouped_matmul(x, weight, sizes, None) + 1

    want = torch.cat([x[:5] @ weight[0].T, x[5:9] @ weight[2].T, torch.zeros(3, 24)]) + 1
    torch.testing.assert_close(run(x.to("tpu"), weight.to("tpu"), sizes.to("tpu")).cpu(), want, **CLOSE)
    with systolic.kernels.force("interpret"):
        again = torch.ops.systolic.grouped_matmul(x.to("tpu"), weight.to("tpu"), sizes.to("tpu"), None)
    torch.testing.assert_close(again.cpu() + 1, want, **CLOSE)


def test_flash_attention_equals_attention_of_each_segment():
    q, k, v = spread(4, 10, 16), spread(2, 10, 16), 2 * spread(2, 10, 16)
    segments = torch.tensor([0] * 4 + [1] * 5 + [-1])
    on_tpu = [x.to("tpu") for x in (q, k, v, segments, segments)]
    got = torch.ops.systolic.flash_attention(*on_tpu, 0.25, True).cpu()
    for begin, end in ((0, 4), (4, 9)):
        part = [x[None, :, begin:end] for x in (q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0))]
        want = torch.nn.functional.scaled_dot_product_attention(*part, is_causal=True, scale=0.25)[0]
        torch.testing.assert_close(got[:, begin:end], want, rtol=1e-5, atol=1e-5)
    assert torch.equal(got[:, 9:], torch.zeros(4, 1, 16))


def test_sampled_tokens():
    logits = torch.tensor([[1.0, 3.0, 2.0, -torch.inf]] * 4)
    noise = torch.tensor([[9.0, 0.0, 4.0, 99.0]] * 4)
    top_k, top_p, min_p = torch.tensor([0, 2, 0, 0]), torch.tensor([1.0, 1.0, 0.5, 1.0]), torch.zeros(4)
    temperature = torch.tensor([1.0, 1.0, 1.0, 0.0])
    given = [x.to("tpu") for x in (logits, noise, temperature, top_k, top_p, min_p)]
    # All but the excluded one; the two largest; the largest, which has more than half; the largest.
    assert torch.ops.systolic.sample_tokens(*given).cpu().tolist() == [0, 2, 1, 1]


def test_delta_step_reads_back_what_it_wrote():
    """With a unit key, beta 1 and an empty state, the query k gives v; the other states stay."""
    key = torch.nn.functional.normalize(spread(2, 1, 8), dim=-1)
    value, state = spread(2, 1, 4), torch.zeros(3, 1, 8, 4)
    state[1] = 7
    gates = torch.zeros(2, 1), torch.ones(2, 1)
    given = [x.to("tpu") for x in (key, key, value, *gates, state, torch.tensor([2, 0]))]
    out, new = torch.ops.systolic.delta_step(*given, 1.0)
    torch.testing.assert_close(out.cpu(), value, rtol=1e-5, atol=1e-5)
    assert torch.equal(new.cpu()[1], state[1]) and not torch.equal(new.cpu()[2], state[2])


@pytest.mark.parametrize("form", ["auto", "interpret"])
@pytest.mark.parametrize("name, program, options", [
    ("decode_stack", 2, ("epsilon", "scale")), ("mla_attention", 0, ("latent", "scale")),
])
def test_an_operator_gives_what_the_oracle_does(name, program, options, form):
    """Of a drawn case in float32, whose absent arrays are empty."""
    proof = registry.proof(name)
    case = proof.draw(0, program * registry.DRAWS_PER_PROGRAM + 2)
    given = [torch.from_numpy(a).to("tpu") if a.size else None for a in case.arrays.values()]
    with systolic.kernels.force(form):
        got = getattr(torch.ops.systolic, name)(*given, *(case.options[o] for o in options))
    for g, want in zip((r.cpu() for r in got), proof.oracle(case), strict=True):
        torch.testing.assert_close(g, torch.from_numpy(want).float(), equal_nan=True, **CLOSE)


def attend(form):
    """One step of vLLM's attention layer: a prompt of 9 tokens, a decode at 20, in a cache of pages of 16."""
    attention = pytest.importorskip("systolic.vllm.attention")
    impl = attention.PagedAttentionImpl(num_heads=2, head_size=64, scale=0.125, num_kv_heads=1)
    metadata = attention.PagedMetadata(
        block_table=torch.tensor([[3, 0], [1, 2]], dtype=torch.int32).to("tpu"),
        seq_lens=torch.tensor([9, 20], dtype=torch.int32).to("tpu"),
        query_start_loc=torch.tensor([0, 9, 10], dtype=torch.int32).to("tpu"),
        slot_mapping=torch.tensor([*range(48, 57), 35, -1]).to("tpu"),
        num_seqs=torch.tensor([2], dtype=torch.int32).to("tpu"),
    )  # fmt: skip
    query, key, value = spread(11, 2, 64).to("tpu"), spread(11, 1, 64).to("tpu"), (2 * spread(11, 1, 64)).to("tpu")
    cache = spread(4, 2, 1, 16, 64).to("tpu")
    output = torch.zeros(11, 2, 64).to("tpu")
    settings.apply({"kernels": form}, "a test")
    try:
        impl.forward(None, query, key, value, cache, metadata, output)
    finally:
        settings.reset()
    return output.cpu(), cache.cpu()


def test_vllms_attention_backend_with_the_pallas_form_equals_the_cpu_form():
    (want, want_cache), (got, got_cache) = attend("auto"), attend("interpret")
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(got_cache, want_cache)
    assert not torch.equal(got, want)  # another form did run: it sums in another order


@pytest.mark.parametrize("change, words", [
    ({"weight": np.zeros((3, 5), np.int8)}, r"x and weight have shapes \(2, 4\) and \(3, 5\)"),
    ({"weight": np.zeros((3, 4), np.int16)}, "weight has dtype int16"),
    ({"weight_scale": np.zeros((3, 3), np.float32)}, "G divides 4"),
    ({"x": np.zeros((2, 4), np.float16)}, "x has dtype float16 and no x_scale"),
    ({"x_scale": np.ones((1, 2), np.float32)}, "with x_scale both must be the same"),
    ({"out_dtype": "int8"}, "out_dtype is int8"),
])
def test_quantized_matmul_refuses(change, words):
    from systolic.kernels.quantized_matmul import quantized_matmul

    given = {"x": np.zeros((2, 4), np.float32), "weight": np.zeros((3, 4), np.int8),
             "weight_scale": np.zeros((2, 3), np.float32)}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        quantized_matmul(**(given | change))


@pytest.mark.parametrize("change, words", [
    ({"weight": np.zeros((3, 4), np.float32)}, "they must be"),
    ({"weight": np.zeros((2, 3, 4), np.int32)}, "weight has dtype int32"),
    ({"group_sizes": np.zeros(3, np.int32)}, r"int32 \[2\]"),
    ({"weight_scale": np.zeros((2, 3, 3), np.float32)}, "a divisor of 4"),
])
def test_grouped_matmul_refuses(change, words):
    from systolic.kernels.grouped_matmul import grouped_matmul

    given = {"x": np.zeros((5, 4), np.float32), "weight": np.zeros((2, 3, 4), np.float32),
             "group_sizes": np.zeros(2, np.int32)}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        grouped_matmul(**(given | change))


@pytest.mark.parametrize("change, words", [
    ({"k": np.zeros((3, 5, 8), np.float32)}, "kv_heads divides q_heads"),
    ({"v": np.zeros((1, 5, 8), np.float16)}, "all must be float32"),
    ({"q_segments": np.zeros(5, np.int32)}, r"q_segments is int32\(5,\)"),
    ({"soft_cap": -1.0}, "soft_cap is -1.0"),
])
def test_flash_attention_refuses(change, words):
    from systolic.kernels.flash_attention import flash_attention

    given = {"q": np.zeros((2, 4, 8), np.float32), "k": np.zeros((1, 5, 8), np.float32),
             "v": np.zeros((1, 5, 8), np.float32), "q_segments": np.zeros(4, np.int32),
             "kv_segments": np.zeros(5, np.int32), "scale": 1.0}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        flash_attention(**(given | change))


@pytest.mark.parametrize("name, value, words", [
    ("logits", np.zeros((2, 0), np.float32), "V > 0"),
    ("noise", np.zeros((2, 4), np.float32), "noise is"),
    ("top_k", np.zeros(2, np.float32), "top_k is float32"),
])
def test_sampling_refuses(name, value, words):
    from systolic.kernels.sampling import sample_tokens

    given = {"logits": np.zeros((2, 3), np.float32), "noise": np.zeros((2, 3), np.float32),
             "temperature": np.ones(2, np.float32), "top_k": np.zeros(2, np.int32), "top_p": np.ones(2, np.float32),
             "min_p": np.zeros(2, np.float32)}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        sample_tokens(**(given | {name: value}))


@pytest.mark.parametrize("change, words", [
    ({"x": np.zeros((9, 256), np.float32)}, r"x has shape \(9, 256\).*1 to 8 sequences"),
    ({"q_norm": None}, "give both or none"),
    ({"kv_cache": np.zeros((1, 2, 2, 3, 16, 128), np.float32)}, "3 divides q_heads"),
    ({"qkv": np.zeros((1, 512, 128), np.float32)}, r"qkv has shape \(1, 512, 128\); it must be \(1, 512, 256\)"),
    ({"down": np.zeros((1, 256, 384), np.float16)}, "down has dtype float16; it must be qkv's float32"),
    ({"seq_lens": np.zeros(1, np.int64)}, "seq_lens has dtype int64"),
    ({"kv_cache": np.zeros((1, 2, 2, 1, 12, 128), np.float32)}, "12 tokens.*multiple of 8"),
    ({"out": np.zeros((1, 256, 384), np.float32), "qkv": np.zeros((1, 640, 256), np.float32)}, "rows of qkv is 640"),
])
def test_decode_stack_refuses(change, words):
    from systolic.kernels.decode_stack import decode_stack

    norm, head_norm = np.ones((1, 256), np.float32), np.ones((1, 128), np.float32)
    given = {"x": np.zeros((1, 256), np.float32), "input_norm": norm, "qkv": np.zeros((1, 512, 256), np.float32),
             "q_norm": head_norm, "k_norm": head_norm, "out": np.zeros((1, 256, 256), np.float32), "post_norm": norm,
             "gate_up": np.zeros((1, 768, 256), np.float32), "down": np.zeros((1, 256, 384), np.float32),
             "kv_cache": np.zeros((1, 2, 2, 1, 16, 128), np.float32), "block_table": np.zeros((1, 2), np.int32),
             "seq_lens": np.ones(1, np.int32), "cos_sin_cache": np.ones((32, 128), np.float32)}  # fmt: skip
    with systolic.kernels.force("interpret"), pytest.raises(ValueError, match=words):
        decode_stack(**(given | change), epsilon=1e-6, scale=1.0)


@pytest.mark.parametrize("change, words", [
    ({"latent": 200}, "latent is 200; it must be from 1 to q's 160 elements"),
    ({"latent": 100}, "the latent has 100 elements; on TPU"),
    ({"new": np.zeros((3, 128), np.float32)}, r"new has shape \(3, 128\); it must be \(3, 160\)"),
    ({"cache": np.zeros((4, 16, 128), np.float32)}, r"it must be \[num_blocks, block_size, 160 or more\]"),
    ({"cache": np.zeros((4, 16, 160), np.float32)}, "a row of the cache has 160 elements; on TPU"),
    ({"cache_scale": np.ones(2, np.float32)}, "it must be float32 of shape"),
    ({"seq_lens": np.zeros(2, np.int32)}, r"seq_lens has shape \(2,\); it must be \(1,\)"),
    ({"q": np.zeros((0, 2, 160), np.float32)}, "q has shape .*, not empty"),
])
def test_mla_attention_refuses(change, words):
    from systolic.kernels.mla_attention import mla_attention

    given = {"q": np.zeros((3, 2, 160), np.float32), "new": np.zeros((3, 160), np.float32),
             "cache": np.zeros((4, 16, 256), np.float32), "block_table": np.zeros((1, 2), np.int32),
             "seq_lens": np.full(1, 3, np.int32), "query_start_loc": np.array([0, 3], np.int32),
             "slot_mapping": np.arange(3, dtype=np.int32), "num_seqs": np.ones(1, np.int32), "latent": 128}  # fmt: skip
    with systolic.kernels.force("interpret"), pytest.raises(ValueError, match=words):
        mla_attention(**(given | change), scale=1.0)


def test_no_rows_give_no_rows():
    from systolic.kernels.grouped_matmul import grouped_matmul
    from systolic.kernels.quantized_matmul import quantized_matmul

    weight, scale = np.zeros((3, 4), np.int8), np.ones((1, 3), np.float32)
    assert quantized_matmul(np.zeros((0, 4), np.float32), weight, scale).shape == (0, 3)
    empty = grouped_matmul(np.zeros((0, 4), np.float32), np.zeros((2, 3, 4), np.float32), np.zeros(2, np.int32))
    assert empty.shape == (0, 3)


def test_a_page_size_that_the_tpu_form_has_not_is_refused():
    from systolic.kernels.paged_attention import paged_attention

    cache = np.zeros((2, 2, 1, 24, 64), np.float32)
    given = [np.zeros((1, 1, 64), np.float32)] * 3
    ints = [np.zeros((1, 1), np.int32), np.ones(1, np.int32), np.arange(2, dtype=np.int32), np.zeros(1, np.int32),
            np.ones(1, np.int32)]  # fmt: skip
    with systolic.kernels.force("interpret"), pytest.raises(ValueError, match="24 tokens.*power of two"):
        paged_attention(*given, cache, *ints, scale=1.0)
