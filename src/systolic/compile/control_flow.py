"""Branches and loops inside a graph become those of XLA: ``cond``, ``while_loop``, ``scan``, ``map``, regions.

A loop body is traced once, so compile time does not grow with the number of steps.  A step's random numbers come
from the loop's key and the step's number.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .higher_order import Call, count_keys, fold_in, lower


@lower("cond")
def _cond(call: Call):
    """``cond(pred, true_graph, false_graph, operands)``; a predicate that sizes decide is taken while tracing."""
    predicate, true_graph, false_graph, operands = call.args

    def branch(module):
        return lambda: tuple(call.walk(module, operands, call.key))

    if isinstance(predicate, bool):
        return branch(true_graph if predicate else false_graph)()
    return jax.lax.cond(jnp.asarray(predicate).reshape(()), branch(true_graph), branch(false_graph))


@lower("while_loop")
def _while_loop(call: Call):
    """``while_loop(cond_graph, body_graph, carried, additional)``: carried values keep shape and dtype."""
    condition, body, carried, additional = call.args
    random = any(count_keys(module.graph) for module in (condition, body))

    def key(step):
        return fold_in(call.key, step) if random else None

    def proceed(state):
        step, values = state
        return jnp.asarray(call.walk(condition, [*values, *additional], key(step))[0]).reshape(())

    def advance(state):
        step, values = state
        return step + 1, _like(call.walk(body, [*values, *additional], key(step)), values)

    return jax.lax.while_loop(proceed, advance, (jnp.uint32(0), tuple(carried)))[1]


@lower("scan")
def _scan(call: Call):
    """``scan(combine_graph, init, xs, additional)``: xs along dimension 0; returns (*carry, *stacked outputs)."""
    combine, init, xs, additional = call.args
    random = count_keys(combine.graph) > 0

    def advance(state, slices):
        step, carry = state
        key = fold_in(call.key, step) if random else None
        results = call.walk(combine, [*carry, *slices, *additional], key)
        return (step + 1, _like(results[: len(init)], carry)), tuple(results[len(init) :])

    (_, carry), stacked = jax.lax.scan(advance, (jnp.uint32(0), tuple(init)), tuple(xs))
    return (*carry, *stacked)


@lower("map_impl")
def _map(call: Call):
    """``map_impl(graph, xs, arguments)``: the graph for each slice of xs along dimension 0."""
    graph, xs, arguments = call.args
    random = count_keys(graph.graph) > 0

    def advance(step, slices):
        key = fold_in(call.key, step) if random else None
        return step + 1, tuple(call.walk(graph, [*slices, *arguments], key))

    return jax.lax.scan(advance, jnp.uint32(0), tuple(xs))[1]


@lower("invoke_subgraph")
def _region(call: Call):
    """``invoke_subgraph(graph, identifier, *operands)``: what ``torch.compiler.nested_compile_region`` marks."""
    graph, _, *operands = call.args
    return call.walk(graph, operands, call.key)


@lower("foreach_map")
def _foreach_map(call: Call):
    """``foreach_map(graph, *operands)``: one graph for all tensors of the lists."""
    graph, *operands = call.args
    return call.walk(graph, operands, call.key)


def _like(results, carried) -> tuple:
    return tuple(new.astype(old.dtype) for new, old in zip(results, carried, strict=True))
