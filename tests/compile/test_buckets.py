"""The option ``buckets``: one program a bucket, equal results at every size, refusal where padding could show."""

import pytest
import torch
from graph_checks import graphs
from torch import nn

from systolic.compile.buckets import Buckets
from systolic.compile.executables import recording

SIZES = (5, 3, 2, 7, 8, 9, 16)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def bucketed(function, buckets=(4, 8, 16)):
    """The function compiled with its first argument's first dimension dynamic."""
    compiled = torch.compile(function, backend="tpu", fullgraph=True, options={"buckets": list(buckets)})

    def call(x):
        torch._dynamo.mark_dynamic(x, 0)
        return compiled(x)

    return call


def graph_programs(programs) -> int:
    return sum(program.name.startswith("graph") for program in programs)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        x = x * torch.arange(tokens.shape[0], device=tokens.device)[:, None]
        return x.softmax(-1), x.view(-1, 2, 4).transpose(0, 1), x.argmax(-1), tokens.shape[0]


def test_one_program_a_bucket_and_equal_results():
    host = Block().eval()
    model = Block().eval()
    model.load_state_dict(host.state_dict())
    model.to("tpu")
    compiled = bucketed(model)
    before = graphs()
    with recording() as programs, torch.no_grad():
        for n in SIZES:
            tokens = torch.arange(n) % 11
            *got, count = compiled(tokens.tpu())
            *want, _ = host(tokens)
            assert count == n
            for a, b in zip(got, want):
                assert a.shape == b.shape
                # the same float32 sums, in products of another size
                torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)
    assert graphs() == before + 1 and graph_programs(programs) == 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, tokens):  # [batch, 6]
        q, k, v = (t.view(t.shape[0], 6, 2, 4).transpose(1, 2) for t in self.qkv(self.embed(tokens)).chunk(3, -1))
        x = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.transpose(1, 2).flatten(2))


def test_attention_over_a_padded_batch():
    host, model = Attention().eval(), Attention().eval()
    model.load_state_dict(host.state_dict())
    compiled = bucketed(model.to("tpu"))
    with recording() as programs, torch.no_grad():
        for n in (3, 5, 2, 7):
            tokens = torch.randint(0, 11, (n, 6))
            # float32 sums in another order
            torch.testing.assert_close(compiled(tokens.tpu()).cpu(), host(tokens), rtol=1e-4, atol=1e-5)
    assert graph_programs(programs) == 2


ROWWISE = {
    "cumsum": lambda x: x.cumsum(0),
    "other dimension": lambda x: (x.sum(1), x.sort(1).values, x.mean(-1, keepdim=True)),
    "batched products": lambda x: torch.bmm(x[:, None], x[:, :, None]).squeeze(-1),
    "kept by a view": lambda x: x.view(-1, 3, 2).permute(1, 0, 2) * 2,
    "merged in front": lambda x: (x + 1).reshape(-1).view(-1, 3) * 2,
    "first row": lambda x: x[0] + 1,
    "new tensors": lambda x: x.new_ones(x.shape[0], 2) + torch.zeros(x.shape[0], 1, device=x.device),
    "stack and join": lambda x: torch.cat([torch.stack([x, x + 1], 2).flatten(1), x], 1),
    "masked": lambda x: torch.where(x > 0, x, -x).masked_fill(x > 1, 0),
}


@pytest.mark.parametrize("function", ROWWISE.values(), ids=ROWWISE)
def test_operators_that_leave_padding_alone(function):
    compiled = bucketed(function)
    with recording() as programs:
        for n in (3, 5, 7):
            x = torch.randn(n, 6)
            got, want = compiled(x.tpu()), function(x)
            for a, b in zip(got, want) if isinstance(want, tuple) else [(got, want)]:
                torch.testing.assert_close(a.cpu(), b)
    assert graph_programs(programs) == 2


REFUSED = {
    "sum": (lambda x: x.sum(), r"aten\.sum\.default mixes elements"),
    "sum over rows": (lambda x: x.sum(0), r"aten\.sum\.dim_IntList mixes elements"),
    "softmax over rows": (lambda x: x.softmax(0), r"softmax\.default mixes elements"),
    "product over rows": (lambda x: x.t() @ x, r"aten\.mm\.default sums over the padded"),
    "the size as a number": (lambda x: x * x.shape[0], r"uses the padded size as a number"),
    "flipped": (lambda x: x.flip(0), r"aten\.flip\.default mixes"),
    "last row": (lambda x: x[-1], r"counts from the end"),
    "cut": (lambda x: x[: x.shape[0] // 2], r"computed from the padded one"),
    "merged behind another": (lambda x: (x + 1).t().reshape(-1), r"aten\..*view\.default merges or splits"),
    "joined": (lambda x: torch.cat([x, x]), r"aten\.cat\.default joins"),
    "random": (lambda x: x + torch.rand_like(x), r"is not known to leave padding alone"),
    "unknown": (
        lambda x: nn.functional.conv1d(x[:, None], torch.ones(1, 1, 2, device=x.device)),
        r"aten\.convolution\.default is not known to leave padding alone",
    ),
    "written": (lambda x: x.add_(1), r"is not known|copy_"),
    "its own input": (lambda x: (x.t(), x + 1), r"is input .* or a view of it"),
    "a start that counts from the size": (
        lambda x: (x + 1, torch.arange(20, device=x.device)[x.shape[0] : x.shape[0] + 2]),
        r"uses the padded size as a number|cuts at",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_operators_that_would_see_padding_are_named(case):
    function, words = case
    with pytest.raises(Exception, match=words) as raised:
        bucketed(function)(torch.randn(5, 6).tpu())
    assert "CannotPad" in str(raised.value) or type(raised.value).__name__ == "CannotPad"
    assert "Leave the option 'buckets' out" in str(raised.value)


def test_sizes_and_their_buckets():
    assert [Buckets.parse([4, 8]).above(n) for n in (2, 4, 5, 8)] == [4, 4, 8, 8]
    assert [Buckets.parse("powers of two").above(n) for n in (1, 2, 3, 9)] == [1, 2, 4, 16]
    with pytest.raises(ValueError, match="size 9 is above the largest bucket, 8; add a bucket"):
        Buckets.parse([4, 8]).above(9)
    for bad in ([], [8, 4], [4, 4], [0, 1], "many", 7, [2.0]):
        with pytest.raises(ValueError, match="buckets must be ascending sizes"):
            Buckets.parse(bad)
    compiled = bucketed(lambda x: x + 1, (4, 8))
    with pytest.raises(ValueError, match="size 9 is above the largest bucket"):
        compiled(torch.ones(9, 2).tpu())
