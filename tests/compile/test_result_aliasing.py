"""Results of a compiled function alias each other and its inputs as in eager execution."""

import pytest
import torch


def aliases(tensors):
    """For each tensor the position of the first one that has the same storage, with its place in there."""
    pointers = [t.untyped_storage().data_ptr() for t in tensors]
    return [(pointers.index(p), t.storage_offset(), t.stride()) for p, t in zip(pointers, tensors)]


FUNCTIONS = {
    "view of a result": lambda x: (lambda y: (y, y.view(-1)))(x + 1),
    "views of a hidden tensor": lambda x: (lambda y: (y[1:], y[:, ::2], y.t()))(x + 1),
    "same result twice": lambda x: (lambda y: (y, y))(x * 2),
    "view of an input": lambda x: (x.t(), x[1], x + 1),
    "other dtype": lambda x: (lambda y: (y, y.view(torch.int32)[1:]))(x + 1),
    "split": lambda x: tuple((x + 1).split(2, 1)),
    "transposed owner": lambda x: (lambda y: (y, y[0], y.t()))((x + 1).t().clone()),
    "copies": lambda x: (lambda y: (y, y.clone(), y.t().contiguous()))(x + 1),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_aliases_are_those_of_eager_execution(name, dynamic):
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="tpu", fullgraph=True, dynamic=dynamic)
    for rows in (4, 6):
        host = torch.arange(rows * 6.0).view(rows, 6)
        inputs = (host, host.tpu())
        want, got = [inputs[0], *function(inputs[0])], [inputs[1], *compiled(inputs[1])]
        assert aliases(got) == aliases(want)
        for i in range(len(want)):
            want[i].add_(1), got[i].add_(1)
            assert all(torch.equal(g.cpu(), w) for g, w in zip(got, want))
