"""Random numbers that a recomputation draws again: dropout inside activation checkpoints of compiled graphs.

AOTAutograd makes the forward graph return the generator's state of each random operator that the backward graph
repeats.  PyTorch keeps states on the host; here a state is an ``int64[2]`` tensor (seed, offset) on the device, so
that nothing waits for it.
"""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import torch
from torch._C import DispatchKey
from torch._prims import rng_prims
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node, map_arg

from .higher_order import Call, lower

_save, _repeat = rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state


@lower("run_and_save_rng_state")
def _lower_save(call: Call):
    """``(operator, *args)`` -> (state, result)."""
    op, *args = call.args
    state = jax.lax.bitcast_convert_type(call.state, jnp.int64)
    return state, call.operate(op, args, call.kwargs, call.result[1], call.key)


@lower("run_with_rng_state")
def _lower_repeat(call: Call):
    """``(state, operator, *args)`` -> the result that the operator had with this state."""
    from ..device.build import random_key

    state, op, *args = call.args
    key = random_key(jax.lax.bitcast_convert_type(state, jnp.uint64))
    return call.operate(op, args, call.kwargs, call.result, key)


def keep_states_on_device(graph: Graph) -> None:
    """Make the saved states of a traced graph device tensors; AOTAutograd describes them as the host's."""
    for node in graph.nodes:
        if node.target is _save:
            parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
            state = _state_like(parts[1].meta["val"])
            node.meta["val"] = (state, parts[1].meta["val"])
            parts[0].meta["val"] = state
        elif node.target is _repeat:
            node.meta["val"] = _fake_result(node)
            node.args[0].meta["val"] = _state_like(node.meta["val"])


def _fake_result(node: Node):
    _, op, *args = map_arg(node.args, lambda n: n.meta["val"])
    kwargs = map_arg(node.kwargs, lambda n: n.meta["val"])
    tensors = [n.meta["val"] for n in node.graph.nodes if isinstance(n.meta.get("val"), FakeTensor)]
    with tensors[0].fake_mode:
        return op(*args, **kwargs)


def _state_like(result):
    while isinstance(result, (tuple, list)):
        result = result[0]
    return result.new_empty((2,), dtype=torch.int64)


def _run_and_save(op, *args, **kwargs):
    place = _place(args, kwargs)
    return torch.tpu.get_rng_state(place).view(torch.int64).to(place), op(*args, **kwargs)


def _run_with(state, op, *args, **kwargs):
    place = _place(args, kwargs)
    current = torch.tpu.get_rng_state(place)
    torch.tpu.set_rng_state(state.cpu().view(torch.uint8), place)
    try:
        return op(*args, **kwargs)
    finally:
        torch.tpu.set_rng_state(current, place)


def _place(args, kwargs) -> torch.device:
    tensors = (a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
    return next((t.device for t in tensors), torch.device(kwargs.get("device") or "cpu"))


def _take_tpu_calls(operation, leading: int, function) -> None:
    """For graphs that run operator by operator: PyTorch's own kernels of these two know four device types."""
    others = operation.py_kernels[DispatchKey.BackendSelect]

    def select(*args, **kwargs):
        chosen = function if _place(args[leading:], kwargs).type == "tpu" else others
        return chosen(*args, **kwargs)

    operation.py_kernels[DispatchKey.BackendSelect] = select
    operation._dispatch_cache.clear()


_take_tpu_calls(_save, 1, _run_and_save)
_take_tpu_calls(_repeat, 2, _run_with)
