"""What compiling a function leads to: graph breaks, the programs and their cost, and what did not compile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from .changes import Recompilation, recompilations
from .executables import Built, recording


@dataclass
class Explanation:
    """The outcome of :func:`explain`; ``str`` of it is a report.

    Attributes:
        graphs: number of graphs that Dynamo made.
        breaks: reason and place of each graph break.
        programs: what was compiled, or loaded from disk, in order.
        fallbacks: operators that ran on the CPU, with the number of calls.
        again: programs that a second call with the same arguments still needed (none is right).
        recompilations: what was compiled or traced again during these calls, and what had changed.
    """

    graphs: int
    breaks: list[str]
    programs: list[Built]
    fallbacks: dict[str, int] = field(default_factory=dict)
    again: list[Built] = field(default_factory=list)
    recompilations: list[Recompilation] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.graphs} graphs, {len(self.breaks)} graph breaks"]
        lines += [f"  break: {reason}" for reason in self.breaks]
        lines.append(f"{len(self.programs)} programs")
        lines += [f"  {program}" for program in self.programs]
        if self.fallbacks:
            lines.append("on the CPU, because not lowered")
            lines += [f"  {name}: {count} calls" for name, count in self.fallbacks.items()]
        if self.again:
            lines.append("compiled by a second call with the same arguments")
            lines += [f"  {program}" for program in self.again]
        if self.recompilations:
            lines.append("compiled or traced again")
            lines += [f"  {recompilation}" for recompilation in self.recompilations]
        return "\n".join(lines)


def explain(function: Callable, *args: Any, then: Sequence[tuple] = (), **kwargs: Any) -> Explanation:
    """Compile ``function`` anew with backend ``"tpu"``, call it twice with the arguments, and say what happened.

    ``then`` holds the positional arguments of further calls, to see what each has compiled and why.  The calls are real: what the function writes is written twice.  Programs of operators outside the compiled graphs
    (after a graph break) are listed too.  Raises what the function raises.
    """
    import torch

    explained = torch._dynamo.explain(function)(*args, **kwargs)
    breaks = [f"{reason.reason} ({_place(reason)})" for reason in explained.break_reasons]
    torch._dynamo.reset()
    before, known = torch.tpu.fallbacks(), recompilations()
    compiled = torch.compile(function, backend="tpu")
    with recording() as programs:
        compiled(*args, **kwargs)
    with recording() as again:
        compiled(*args, **kwargs)
    with recording() as later:
        for further in then:
            compiled(*further, **kwargs)
    after = torch.tpu.fallbacks()
    fallbacks = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    repeated = [r for r in recompilations() if not any(r is k for k in known)]
    return Explanation(explained.graph_count, breaks, programs + later, fallbacks, again, repeated)


def _place(reason) -> str:
    if not reason.user_stack:
        return "no line"
    frame = reason.user_stack[-1]
    return f"{frame.filename}:{frame.lineno}"
