"""Modules, optimisers and their state on the device."""

import copy

import pytest
import torch
from torch import nn


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def test_module_moves_with_parameters_and_buffers():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("tpu")
    assert {p.device.type for p in model.parameters()} == {"tpu"}
    assert {b.device.type for b in model.buffers()} == {"tpu"}
    assert all(type(p) is nn.Parameter and p.is_leaf and p.requires_grad for p in model.parameters())
    back = model.cpu()
    assert {p.device.type for p in back.parameters()} == {"cpu"}
    assert {p.device.type for p in back.tpu().parameters()} == {"tpu"}


def test_module_dtype_conversion():
    model = small_model().to("tpu", torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model(torch.randn(2, 4, device="tpu", dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_forward_equals_the_cpu():
    model, x = small_model().eval(), torch.randn(3, 4)
    want = model(x)
    torch.testing.assert_close(model.to("tpu")(x.tpu()).cpu(), want)


LAYERS = {
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 6)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 2, 3), (2, 3, 5)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (4, 3)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (1, 2, 4, 4)),
    "MultiheadAttention": (lambda: _Attend(), (2, 5, 8)),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (2, 5, 8),
    ),
    "LSTM": (lambda: _First(nn.LSTM(4, 6, num_layers=2, bidirectional=True)), (5, 2, 4)),
    "GRU": (lambda: _First(nn.GRU(4, 6, batch_first=True)), (5, 2, 4)),
    "RNN": (lambda: _First(nn.RNN(4, 6)), (5, 2, 4)),
    "LSTMCell": (lambda: _First(nn.LSTMCell(4, 6)), (3, 4)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
}


class _First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


class _Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_layer_forward_and_backward_equal_the_cpu(name):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    host, x = make(), torch.randn(shape)
    device = copy.deepcopy(host).to("tpu")
    x.requires_grad_()
    y = x.detach().tpu().requires_grad_()
    out, got = host(x), device(y)
    torch.testing.assert_close(got.cpu(), out, rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    got.square().sum().backward()
    gradients = [("x", x.grad, y.grad)]
    gradients += [(k, p.grad, q.grad) for (k, p), q in zip(host.named_parameters(), device.parameters())]
    for key, want, grad in gradients:
        # float32 sums in another order, through several layers
        torch.testing.assert_close(grad.cpu(), want, rtol=2e-3, atol=2e-4, msg=lambda m, k=key: f"{k}: {m}")
    for want, buffer in zip(host.buffers(), device.buffers()):
        torch.testing.assert_close(buffer.cpu(), want)


def test_embedding_and_tied_weights():
    emb = nn.Embedding(10, 4, padding_idx=0)
    head = nn.Linear(4, 10, bias=False)
    head.weight = emb.weight
    both = nn.ModuleList([emb, head]).to("tpu")
    assert both[0].weight is both[1].weight
    out = both[1](both[0](torch.tensor([[0, 3]], device="tpu")))
    assert out.shape == (1, 2, 10)
    out.sum().backward()
    assert emb.weight.grad[0].abs().sum().item() > 0  # from the head; the embedding adds none
    assert len(list(both.parameters())) == 1
    assert both.cpu()[0].weight is both[1].weight


def test_state_dict_round_trip():
    source = small_model().to("tpu")
    state = source.state_dict()
    assert all(v.device.type == "tpu" for v in state.values())
    target = small_model()
    for p in target.parameters():
        nn.init.zeros_(p)
    target.load_state_dict(state)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(target.state_dict().values(), state.values()))
    source.load_state_dict(small_model().state_dict())
    assert source[0].weight.device.type == "tpu"


def test_to_empty_and_meta():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model.to_empty(device="tpu")
    assert model.weight.device.type == "tpu"
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    assert model(torch.ones(1, 3, device="tpu")).tolist() == [[3.0, 3.0]]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam per tensor": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_the_cpu(name):
    host = small_model()
    device = copy.deepcopy(host).to("tpu")
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    losses = []
    for model, where in ((host, "cpu"), (device, "tpu")):
        optimizer = OPTIMIZERS[name](model.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.to(where)), y.to(where))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        losses.append(loss.item())
    # four float32 steps
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    for p, q in zip(host.parameters(), device.parameters()):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-3, atol=1e-5)


def test_optimizer_state_round_trip():
    model = small_model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, device="tpu")).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    fresh = torch.optim.AdamW(model.parameters())
    fresh.load_state_dict(state)
    moment = fresh.state[next(iter(model.parameters()))]["exp_avg"]
    assert moment.device.type == "tpu" and moment.abs().sum().item() > 0


def test_lazy_modules_move_before_their_first_input():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyConvTranspose2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    model.to("tpu")
    assert isinstance(model[0].weight, nn.parameter.UninitializedParameter)
    assert model(torch.ones(1, 2, 5, 5, device="tpu")).shape == (1, 2)
    assert model[0].weight.shape == (2, 4, 3, 3) and {p.device.type for p in model.parameters()} == {"tpu"}
