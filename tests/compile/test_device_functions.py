"""Functions of torch.tpu that run beside compiled code: Dynamo must leave their frames alone."""

import torch


def test_random_state_is_kept_around_a_graph_break():
    @torch.compile
    def function(x):
        y = x + 1
        with torch.random.fork_rng(device_type="tpu"):
            torch.manual_seed(3)
            torch._dynamo.graph_break()
            noise = torch.rand(3, device="tpu")
        return y + noise

    torch._dynamo.reset()
    torch.manual_seed(1)
    state = torch.tpu.get_rng_state()
    out = function(torch.zeros(3).tpu())
    assert torch.equal(torch.tpu.get_rng_state(), state)
    torch.manual_seed(3)
    assert torch.equal(out, torch.rand(3, device="tpu") + 1)
