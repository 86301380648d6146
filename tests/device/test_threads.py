"""Eight threads at once: own tensors, shared tensors, autograd, compilation, workers that feed the device."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

THREADS = 8


def together(work):
    """Run ``work(i)`` in eight threads that start at the same moment; raise what any of them raised."""
    barrier, errors, results = threading.Barrier(THREADS), [], [None] * THREADS

    def run(i):
        try:
            barrier.wait(60)
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def test_own_tensors():
    def work(i):
        t = torch.arange(64.0, device="tpu").view(8, 8) + i
        for step in range(20):
            t[step % 8].add_(1)
            t = (t.t() * 2 - t.t()).contiguous()
        return t.cpu()

    for i, got in enumerate(together(work)):
        want = torch.arange(64.0).view(8, 8) + i
        for step in range(20):
            want[step % 8].add_(1)
            want = want.t().contiguous()
        assert torch.equal(got, want)


def test_writes_to_separate_rows_of_a_shared_tensor():
    shared = torch.zeros(THREADS, 16, device="tpu")

    def work(i):
        for step in range(50):
            shared[i].add_(step)
            shared[i, :4].mul_(1)
        return shared[i].cpu()

    for row in together(work):
        assert row.tolist() == [sum(range(50))] * 16
    assert shared.sum().item() == THREADS * 16 * sum(range(50))


def test_in_place_operators_on_one_tensor_are_not_lost():
    """Each operator takes effect as a whole, as with a stream of one device."""
    shared = torch.zeros(16, dtype=torch.int64, device="tpu")
    together(lambda i: [shared.add_(1) for _ in range(100)] and None)
    assert shared.tolist() == [100 * THREADS] * 16


def test_first_use_of_a_program():
    """All threads need the same new programs, and compile others beside them."""

    def work(i):
        t = torch.ones(7, 3 + i, device="tpu")
        return [(torch.ones(7, 31, device="tpu") * 3).sum().item(), (t.softmax(1) @ t.t()).sum().item()]

    for same, own in together(work):
        assert same == 651.0 and abs(own - 49.0) < 1e-3  # 49 sums of float32 numbers near 1


def test_autograd():
    layer = nn.Linear(6, 4).tpu()
    weight = layer.weight.detach().cpu()

    def work(i):
        x = torch.full((3, 6), float(i), device="tpu", requires_grad=True)
        y = layer(x).relu().sum()
        return torch.autograd.grad(y, [x, layer.weight])

    for i, grads in enumerate(together(work)):
        x = torch.full((3, 6), float(i), requires_grad=True)
        w = weight.clone().requires_grad_()
        want = torch.autograd.grad(nn.functional.linear(x, w, layer.bias.detach().cpu()).relu().sum(), [x, w])
        for got, expected in zip(grads, want):
            # float32 sums of at most 6 numbers of size up to 7
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_accumulate_from_all_threads():
    parameter = torch.ones(5, device="tpu", requires_grad=True)
    together(lambda i: [(parameter * (i + 1)).sum().backward() for _ in range(10)] and None)
    assert parameter.grad.tolist() == [10.0 * sum(range(1, THREADS + 1))] * 5


def test_random_numbers_of_threads_differ():
    draws = together(lambda i: torch.rand(32, device="tpu").cpu())
    assert len({tuple(d.tolist()) for d in draws}) == THREADS


def test_current_device_belongs_to_a_thread():
    assert together(lambda i: torch.tpu.current_device()) == [0] * THREADS


def test_compiled_function():
    @torch.compile(backend="tpu", dynamic=False)
    def run(x):
        return (x * 2 + 1).sum(0)

    run(torch.ones(3, 5, device="tpu"))
    for got in together(lambda i: run(torch.full((3, 5), float(i), device="tpu")).cpu()):
        assert got.numel() == 5
    results = together(lambda i: run(torch.full((3, 5), float(i), device="tpu")).cpu())
    assert [r[0].item() for r in results] == [3 * (2 * i + 1) for i in range(THREADS)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:os.fork", "ignore:This process")
def test_data_loader_workers_feed_the_device(method):
    """The workers keep to CPU tensors, so a fork is fine even after the device was used."""
    torch.ones(1, device="tpu").add_(1)
    data = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method)
    total, seen = torch.zeros(2, device="tpu"), []
    for x, y in loader:
        total += x.to("tpu", non_blocking=True).sum(0)
        seen += y.tpu().tolist()
    assert total.tolist() == [380.0, 400.0] and sorted(seen) == list(range(20))
