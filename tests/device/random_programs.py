"""Random programs about storage: chains of views, writes through them, copies and reductions.

:func:`programs` is a hypothesis strategy.  A program is a list of Python statements over tensors that are
made on ``device``.  It is executed on the CPU while it is drawn, so that each statement fits the tensors of
its moment and so that statements whose result PyTorch leaves open (a write to overlapping memory, a
conversion out of range) are not drawn.  The numbers stay small multiples of 1/64, so every result is exact
and is compared bit by bit.  Sizes come from a small set: programs share most of their executables.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

ELEMENTS = 24
SHAPES = [(4, 6), (2, 3, 4), (24,)]
# The first ones are drawn most often.
DTYPES = ["float32", "float32", "int32", "float32", "int64", "bfloat16", "bool", "uint8", "complex64",
          "float64", "int8", "float16"]  # fmt: skip
NAMES = "abcdefghijklmnop"
MAX_NUMEL = 96


@dataclass
class Program:
    """``setup`` makes the first tensors, ``steps`` are run one by one; those in ``raising`` must raise."""

    setup: list[str]
    steps: list[str] = field(default_factory=list)
    raising: dict[int, type] = field(default_factory=dict)
    error: Exception | None = None

    def source(self, device: str = "tpu") -> str:
        """The program as Python that runs by itself."""
        lines = ["import torch", f"device = {device!r}", *self.setup]
        for i, step in enumerate(self.steps):
            if i in self.raising:
                lines += ["try:", f"    {step}", f"except {self.raising[i].__name__} as error:", "    print(error)"]
            else:
                lines.append(step)
        return "\n".join(lines)

    __str__ = __repr__ = source

    def function(self) -> str:
        """The steps as one function of the setup's tensors that returns every tensor it made."""
        inputs = [line.split(" = ")[0] for line in self.setup]
        made = sorted({s.split(" = ")[0] for s in self.steps if s[1:4] == " = "} - set(inputs))
        body = [*self.steps, f"return {', '.join(made)}," if made else "return ()"]
        return f"def program({', '.join(inputs)}):\n" + "".join(f"    {line}\n" for line in body)


class Run:
    """A program's variables on one device."""

    def __init__(self, program: Program, device: str):
        self.variables: dict = {"torch": torch, "device": device}
        for line in program.setup:
            self.do(line)

    def do(self, line: str) -> None:
        exec(line, self.variables)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {k: v for k, v in self.variables.items() if isinstance(v, torch.Tensor)}


def elements(t: torch.Tensor) -> list[int]:
    """Addresses of a tensor's elements, in order."""
    places = torch.full(t.shape, t.data_ptr() if t.numel() else 0)
    for d, (n, stride) in enumerate(zip(t.shape, t.stride())):
        places += (torch.arange(n) * stride * t.element_size()).view(-1, *[1] * (t.dim() - d - 1))
    return places.flatten().tolist()


def memory(t: torch.Tensor) -> set[int]:
    return {place + byte for place in elements(t) for byte in range(t.element_size())}


def same_window(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype)


def exact(t: torch.Tensor) -> bool:
    """Whether any device computes the same with these numbers."""
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    if t.dtype == torch.bool:
        return bool((t.view(torch.uint8) <= 1).all())
    if t.is_complex():
        t = torch.view_as_real(t)
    if not t.is_floating_point():
        return bool((t.double().abs() <= 4096).all())
    limit, parts = (128, 1) if t.element_size() == 2 else (4096, 64)
    wide = t.double()
    fine = (wide.abs() <= limit) & (wide * parts == (wide * parts).round()) & ~((wide == 0) & wide.signbit())
    return bool(fine.all())


class Writer:
    """Makes a program out of bytes: some for the setup, some for each step, so that steps can be left out."""

    def __init__(self, setup_choices: bytes, step_choices: list[bytes], may_raise: bool, rebind: bool):
        self.choices, self.may_raise = iter(setup_choices), may_raise
        setup = []
        for name in NAMES[: self.number(1, 3)]:
            dtype, shape = self.of(DTYPES), self.of(SHAPES)
            start = self.of([-8, 1, 100])
            values = f"torch.arange({start}, {start + ELEMENTS})"
            values += " % 3 > 0" if dtype == "bool" else ""
            setup.append(f"{name} = ({values}).to(torch.{dtype}).view({shape}).to(device)")
        self.program = Program(setup)
        self.run = Run(self.program, "cpu")
        for choices in step_choices:
            self.choices = iter(choices)
            kind = self.of([self.view, self.write, self.view, self.write, self.compute, self.view, self.write,
                            *[self.rebind] * rebind])  # fmt: skip
            name = self.of(sorted(self.run.tensors))
            step = kind(name, self.run.tensors[name])
            if step is not None:
                self.try_step(step)

    def number(self, low: int, high: int) -> int:
        return low + next(self.choices) % (high - low + 1)

    def of(self, options):
        return options[next(self.choices) % len(options)]

    def try_step(self, step: str) -> None:
        """Keep the statement if the CPU does it with exact numbers, or refuses it."""
        try:
            self.run.do(step)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            if self.may_raise and len(self.program.raising) < 2:
                self.program.raising[len(self.program.steps)] = type(error)
                self.program.steps.append(step)
            return
        tensors = self.run.tensors
        # Views of another dtype show any bits; what was computed or written must be exact.
        changed = tensors[step[0]]
        if changed.numel() > MAX_NUMEL or changed.dim() > 4 or (self.arithmetic and not exact(changed)):
            self.run = Run(self.program, "cpu")
            for i, earlier in enumerate(self.program.steps):
                if i not in self.program.raising:
                    self.run.do(earlier)
            return
        self.program.steps.append(step)

    def new(self, expression: str) -> str | None:
        free = [n for n in NAMES if n not in self.run.tensors]
        return f"{free[0]} = {expression}" if free else None

    def view(self, x: str, t: torch.Tensor) -> str | None:
        self.arithmetic = False
        options = ["detach()", "data", "view(-1)", "reshape(-1)", "view(2, -1)", "reshape(-1, 3)", "unsqueeze(0)",
                   "squeeze()", "view_as(%s)" % x]  # fmt: skip
        d = self.number(0, t.dim() - 1) if t.dim() else 0
        n = t.shape[d] if t.dim() else 1
        if t.dim():
            at = ":, " * d
            options += [f"select({d}, 0)", f"select({d}, -1)", f"unbind({d})[{n // 2}]", f"split(2, {d})[-1]",
                        f"chunk(2, {d})[-1]", f"unsqueeze(-1)", f"squeeze({d})", f"flatten({d})"] * (n > 0)
            slices = ["1:", ":-1", "::2", "1::2", "1:1"]
            options += [f"narrow({d}, 1, {n - 1})", f"unfold({d}, 2, 2)", f"unfold({d}, 2, 1)"] * (n > 1)
            options += [f"__getitem__(({at.replace(':', 'slice(None)')}{as_slice(s)},))" for s in slices]
        if t.dim() > 1:
            options += ["transpose(0, 1)", "mT", "movedim(0, -1)", "diagonal()", "diagonal(1, -1, -2)",
                        f"permute({', '.join(map(str, reversed(range(t.dim()))))})", "flatten(0, 1)"] * 2
        options += [f"unsqueeze(0).expand({', '.join(['2'] + ['-1'] * t.dim())})"]
        if t.untyped_storage().nbytes() >= 12 * t.element_size():
            options += ["as_strided((2, 3), (6, 1), 1)", "as_strided((3, 2), (1, 4), 0)", "as_strided((4,), (3,), 2)",
                        "as_strided((2, 2), (1, 1), 0)"]  # fmt: skip
        if t.is_complex():
            options += ["real", "imag", "conj()"] * 2
        options += [f"view(torch.{dtype})" for dtype in dict.fromkeys(DTYPES)]
        choice = self.of([*options, "complex"])
        if choice == "complex":
            return self.new(f"torch.view_as_{'real' if t.is_complex() else 'complex'}({x})")
        return self.new(f"{x}.{choice}")

    def other(self, t: torch.Tensor) -> str | None:
        """A variable that broadcasts to the shape of ``t`` without sharing its memory in part."""
        own = memory(t)
        fitting = []
        for name, y in self.run.tensors.items():
            if not exact(y) or y.dim() > t.dim():
                continue
            if any(m not in (1, n) for m, n in zip(reversed(y.shape), reversed(t.shape))):
                continue
            if same_window(t, y) or own.isdisjoint(memory(y)):
                fitting.append(name)
        return self.of(sorted(fitting)) if fitting else None

    def write(self, x: str, t: torch.Tensor) -> str | None:
        self.arithmetic = True
        places = elements(t)
        options = ["zero_()", "fill_(3)"]
        if len(set(places)) < len(places):
            # Other writes to such memory are refused where a stride is 0, and undefined elsewhere.
            # A compiled one is wrong in PyTorch itself: functionalization adds up what the copies changed.
            expanded = any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride()))
            if not self.may_raise:
                return None
            return f"{x}.{self.of([*options, 'add_(1)'] if expanded else options)}"
        y = self.other(t)
        if exact(t):
            options += ["add_(1)", "mul_(2)", "masked_fill_(%s > 2, 5)" % x, "sub_(%s)" % x]
            options += ["neg_()"] * (not t.is_complex())  # the CPU loses the sign of zero
            options += ["mul_(0.5)", "clamp_(0, 4)"] * t.is_floating_point()
        if t.dim():
            n = t.shape[0]
            if n > 1:
                index = f"torch.tensor([{n - 1}, 0], device=device)"
                again = f"torch.tensor([0, {n - 1}, 0], device=device)"
                value = f"torch.tensor(2, device=device).to({x}.dtype)"
                options += [f"index_put_(({index},), {value})", f"index_fill_(0, {index}, 1)",
                            f"__setitem__({index}, 7)", "__setitem__(slice(None, None, 2), 4)",
                            "__setitem__(-1, 6)"]  # fmt: skip
                options += [f"index_put_(({again},), {value}, accumulate=True)"] * exact(t)
        if y is not None and self.converts(self.run.tensors[y], t):
            options += [f"copy_({y})", f"copy_({y})", f"__setitem__(Ellipsis, {y})"]
            if exact(t):
                options += [f"add_({y})", f"mul_({y})", f"masked_fill_({y} > 0, 2)"]
        return f"{x}.{self.of(options)}"

    @staticmethod
    def converts(source: torch.Tensor, target: torch.Tensor) -> bool:
        """False where the result of a conversion is open: out of the target's range."""
        if source.is_complex() and not target.is_complex():
            source = torch.view_as_real(source.resolve_conj())
        if not source.is_floating_point() or target.is_floating_point() or target.is_complex():
            return True
        if target.dtype == torch.bool:
            return True
        info = torch.iinfo(target.dtype)
        return bool(((source >= info.min) & (source <= info.max)).all())

    def compute(self, x: str, t: torch.Tensor) -> str | None:
        self.arithmetic = exact(t)
        options = [f"{x}.clone()", f"{x}.contiguous()"]
        if self.arithmetic:
            d = self.number(0, t.dim() - 1) if t.dim() else 0
            y = self.other(t) or x
            dtype = self.of([s for s in dict.fromkeys(DTYPES) if self.converts(t, torch.empty(0, dtype=getattr(torch, s)))])
            options += [f"{x}.to(torch.{dtype})"] * 2
            options += [f"{x} + {y}", f"{x} * 2", f"{x}.sum()", f"{x}.sum({d})", f"{x}.amax({d})", f"{x}.any({d})",
                        f"{x}.cumsum({d})", f"{x}.flip({d})", f"torch.cat([{x}, {y}], {d})", f"{x} > 1",
                        f"torch.where({x} > 1, {x}, {y})", f"torch.stack([{x}, {x}], {d})",
                        f"{x}.reshape(-1)[::2].sort(stable=True).values",
                        f"{x}.index_select({d}, torch.tensor([0, 0], device=device))"]  # fmt: skip
        return self.new(self.of(options))

    def rebind(self, x: str, t: torch.Tensor) -> str | None:
        self.arithmetic = False
        same = [n for n, y in self.run.tensors.items() if y.dtype == t.dtype and not y.is_conj() | t.is_conj()]
        return f"{x}.data = {self.of(sorted(same))}" if same else None


def as_slice(text: str) -> str:
    """``1::2`` as a ``slice`` expression."""
    return f"slice({', '.join(part or 'None' for part in text.split(':'))})"


def programs(max_size: int = 8, may_raise: bool = True, rebind: bool = True):
    """A strategy for :class:`Program` of at most ``max_size`` steps."""
    steps = st.lists(st.binary(min_size=6, max_size=6), min_size=1, max_size=max_size)
    return st.builds(lambda first, rest: Writer(first, rest, may_raise, rebind).program,
                     st.binary(min_size=10, max_size=10), steps)  # fmt: skip
