"""A program with many equal layers as a chain of smaller ones, of which the layer is compiled once.

XLA compiles every call of a function anew, so that its time grows with the depth of a model.  :func:`split` cuts a
traced program into what comes before the layers, one layer, and what comes after; :class:`.Chain` runs them one after
the other, the layer's executable once for each set of weights.  A launch costs some ten microseconds, so only layers
that read enough memory are cut out (:data:`LEAST_BYTES`).  XLA:CPU holds up the host at 32 launches that have not run:
engines, which prepare one step while the last one runs, keep their programs whole there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from jax.extend import core

from .chain import Wiring

# The name under which :mod:`.interpreter` traces one of several equal groups.
LAYER = "systolic_layer"
# Fewer layers than this compile quickly as they are.
LEAST_LAYERS = 4
# What a layer must read: at 20 GB/s 8 MiB take 400 us, of which a launch is about 3 %.
LEAST_BYTES = 8 << 20
# Changes of form: cheap inside the program that uses their result, a copy at the border of two programs.
_FORMS = {"reshape", "transpose", "squeeze", "broadcast_in_dim", "slice", "bitcast_convert_type", "expand_dims", "copy"}


@dataclass
class Stage:
    """One program to compile: a function of arrays of ``specs`` (shape, dtype) that returns a list of arrays."""

    function: Callable
    specs: list[tuple[tuple[int, ...], Any]]
    donated: tuple[int, ...]


def split(closed, donated: Sequence[int]) -> tuple[list[Stage], Wiring] | None:
    """Cut a traced program (a ``ClosedJaxpr``) at its layers; ``donated`` are positions of its inputs.

    None where it has too few layers, they read too little, something stands between them, or a donated input
    could not be donated to the one stage that uses it.
    """
    jaxpr = closed.jaxpr
    layers = _layers(jaxpr)
    if layers is None or closed.effects:
        return None
    cut = _Cut(closed, layers)
    if not cut.assign():
        return None
    return cut.stages(donated)


def _layers(jaxpr) -> list | None:
    named = [e for e in jaxpr.eqns if e.params.get("name") == LAYER]
    if len(named) < LEAST_LAYERS or any(e.params["jaxpr"] is not named[0].params["jaxpr"] for e in named):
        return None
    given = set(jaxpr.invars)
    weights = {v for v in named[0].invars if not _literal(v) and v in given}
    if sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in weights) < LEAST_BYTES:
        return None
    return named


def _literal(atom) -> bool:
    return isinstance(atom, core.Literal)


def _named(e):
    """The equation with a variable for each result, also for those that nothing uses here."""
    return e.replace(outvars=[core.Var(v.aval) if isinstance(v, core.DropVar) else v for v in e.outvars])


class _Cut:
    """The equations of a program given to: before, each layer, after."""

    def __init__(self, closed, layers: list):
        named = {id(e): _named(e) for e in layers}
        self.jaxpr = closed.jaxpr.replace(eqns=[named.get(id(e), e) for e in closed.jaxpr.eqns])
        layers = list(named.values())
        self.given = set(self.jaxpr.invars)
        self.constants = dict(zip(self.jaxpr.constvars, closed.consts))
        self.number = {id(e): i for i, e in enumerate(layers)}
        self.layers: list[list] = [[] for _ in layers]  # the equations of each
        self.before: list = []
        self.after: list = []

    def assign(self) -> bool:
        """Give every equation its place; False if one stands between two layers."""
        reaches: dict[Any, set[int]] = {}  # variable -> the layers that it depends on
        for e in self.jaxpr.eqns:
            found = set().union(*(reaches.get(v, ()) for v in e.invars if not _literal(v)))
            number = self.number.get(id(e))
            reaches.update(dict.fromkeys(e.outvars, found if number is None else found | {number}))
        feeds: set[Any] = set()  # variables that a layer needs, itself or by way of others
        users: dict[Any, set] = {v: {"result"} for v in self.jaxpr.outvars if not _literal(v)}
        place: dict[int, Any] = dict(self.number)
        for e in reversed(self.jaxpr.eqns):
            needed = id(e) in self.number or any(v in feeds for v in e.outvars)
            if id(e) not in self.number:
                if any(reaches.get(v) for v in e.invars if not _literal(v)):
                    if needed:
                        return False
                    place[id(e)] = "after"
                else:
                    direct = set().union(*(users.get(v, ()) for v in e.outvars))
                    place[id(e)] = self._before(e, direct) if needed else "after"
            for v in e.invars:
                if not _literal(v):
                    users.setdefault(v, set()).add(place[id(e)])
                    feeds.update([v] if needed else [])
        groups = {"before": self.before, "after": self.after, **dict(enumerate(self.layers))}
        for e in self.jaxpr.eqns:
            groups[place[id(e)]].append(e)
        return True

    def _before(self, e, users: set):
        """The layer that alone uses what the equation, of inputs of the program, changes the form of; or "before"."""
        form = e.primitive.name in _FORMS and all(_literal(v) or v in self.given for v in e.invars)
        return next(iter(users)) if form and len(users) == 1 and isinstance(next(iter(users)), int) else "before"

    def stages(self, donated: Sequence[int]) -> tuple[list[Stage], Wiring] | None:
        if any(_literal(v) or v in self.constants for v in self.jaxpr.outvars):
            return None
        groups = [self.before, *self.layers, self.after]
        reads = [_reads(equations, self.constants) for equations in groups]
        makes = self._makes(groups, reads)
        if makes is None:
            return None
        partners = _partners(self.jaxpr, donated)
        gives = self._gives(reads, makes, partners)
        if sum(map(len, gives)) != len(partners) or any(g != gives[1] for g in gives[1:-1]):
            return None
        # JAX pairs donated inputs with results of their type in order: the partners come first.
        firsts = [[partners[read[i]] for i in give] for read, give in zip(reads, gives)]
        places = [[made.index(v) for v in first] for first, made in zip(firsts, makes)]
        if any(place != places[1] for place in places[1:-1]):
            return None
        numbers = {v: i for i, v in enumerate(self.jaxpr.invars)}
        stages, wiring = [], Wiring(len(numbers))
        for position, equations in enumerate(groups):
            if not equations:
                continue
            made = [*firsts[position], *(v for v in makes[position] if v not in firsts[position])]
            for v in made:
                numbers[v] = len(numbers)
            if not 1 < position < len(groups) - 1:
                stages.append(self._stage(equations, reads[position], made, gives[position]))
            wiring.runs.append((len(stages) - 1, [numbers[v] for v in reads[position]], [numbers[v] for v in made]))
        wiring.results = [numbers[v] for v in self.jaxpr.outvars]
        return stages, wiring

    def _makes(self, groups, reads) -> list | None:
        """What each stage gives on; all layers the same, or None if they are not equal."""
        results = set(self.jaxpr.outvars)
        made, places = [], []
        for position, equations in enumerate(groups):
            needed = results.union(*reads[position + 1 :])
            places.append([(i, j) for i, e in enumerate(equations) for j, v in enumerate(e.outvars) if v in needed])
        shared = sorted(set().union(*places[1:-1]))
        texts = {_text(equations, read, self.number) for equations, read in zip(groups[1:-1], reads[1:-1])}
        if len(texts) != 1:
            return None
        for position, equations in enumerate(groups):
            inner = 0 < position < len(groups) - 1
            made.append([equations[i].outvars[j] for i, j in (shared if inner else places[position])])
        return made

    def _gives(self, reads, makes, partners) -> list[list[int]]:
        """Positions of each stage's inputs that it may overwrite: nothing reads them later, and it makes the result."""
        last = {v: position for position, read in enumerate(reads) for v in read}
        results = set(self.jaxpr.outvars)
        return [
            [i for i, v in enumerate(read)
             if v in partners and last[v] == position and v not in results and partners[v] in makes[position]]
            for position, read in enumerate(reads)
        ]  # fmt: skip

    def _stage(self, equations, read, made, donated) -> Stage:
        used = {v for e in equations for v in e.invars if not _literal(v)}
        constants = [v for v in self.constants if v in used]
        names = self.jaxpr.debug_info.with_unknown_names()
        jaxpr = core.Jaxpr(constants, read, made, equations, debug_info=names)
        function = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, [self.constants[v] for v in constants]))
        return Stage(function, [(tuple(v.aval.shape), v.aval.dtype) for v in read], tuple(donated))


def _reads(equations, constants) -> list:
    """What a stage takes from outside, in order of first use."""
    made, read = set(), {}
    for e in equations:
        for v in e.invars:
            if not _literal(v) and v not in made and v not in constants:
                read.setdefault(v)
        made.update(e.outvars)
    return list(read)


def _text(equations, read, layers) -> str:
    """Text that is equal for stages which compute the same from inputs in the same places."""
    names: dict[Any, Any] = {v: f"in{i}:{v.aval}" for i, v in enumerate(read)}
    lines = []
    for e in equations:
        what = "layer" if id(e) in layers else f"{e.primitive.name} {e.params}"
        given = [f"{v.val!r}:{v.aval}" if _literal(v) else names.get(v, f"constant {id(v)}") for v in e.invars]
        lines.append(f"{what} {given}")
        names.update({v: f"{len(lines)}.{i}" for i, v in enumerate(e.outvars)})
    return "\n".join(lines)


def _partners(jaxpr, donated: Sequence[int]) -> dict[Any, Any]:
    """Each donated input with the result that takes its memory: JAX pairs equal types in order."""
    free = [v for v in jaxpr.outvars if not _literal(v)]
    found = {}
    for position in donated:
        source = jaxpr.invars[position]
        for v in free:
            if (v.aval.shape, v.aval.dtype) == (source.aval.shape, source.aval.dtype):
                found[source] = v
                free.remove(v)
                break
    return found
