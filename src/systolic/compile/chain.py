"""Several executables run as one program: what :mod:`.stages` cuts a deep program into.  Needs no JAX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence


@dataclass
class Wiring:
    """How compiled stages make up a program; values have numbers, the program's inputs those below ``given``.

    runs: for each run in order, the stage, the numbers of its inputs and those of its outputs.
    results: the numbers of the program's results.
    """

    given: int
    runs: list[tuple[int, list[int], list[int]]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)


class Chain:
    """Compiled stages for device ``index``, callable as the program that they were cut from: arrays to a tuple."""

    def __init__(self, wiring: Wiring, compiled: Sequence[Callable], index: int):
        from ..device.launches import note_launch  # here: `systolic cache` imports this package without PyTorch

        self.wiring = wiring
        self.index = index
        self.note_launch = note_launch
        last: dict[int, int] = {}  # value -> the run after which it is not needed
        for number, (_, inputs, outputs) in enumerate(wiring.runs):
            last.update(dict.fromkeys((*inputs, *outputs), number))
        kept = set(wiring.results)
        self.steps = [
            (compiled[stage], inputs, outputs, [v for v in (*inputs, *outputs) if last[v] == number and v not in kept])
            for number, (stage, inputs, outputs) in enumerate(wiring.runs)
        ]
        self.made = 1 + max([*last, *wiring.results]) - wiring.given

    def __call__(self, *arrays):
        values = [*arrays, *[None] * self.made]
        made: Sequence = ()
        for call, inputs, outputs, dead in self.steps:
            made = call(*[values[i] for i in inputs])
            for number, value in zip(outputs, made):
                values[number] = value
            for number in dead:
                values[number] = None
        # Results of several stages are not ready together: whoever waits for this launch waits for its last stage.
        for value in made[:1]:
            self.note_launch(value, self.index)
        return tuple([values[number] for number in self.wiring.results])
