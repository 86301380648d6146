"""Python of the device that Dynamo must not trace.

After a graph break Dynamo looks at every Python frame that starts, also at those that the C++ core calls for
an eager operator, and at those of ``torch.tpu`` that PyTorch calls, as ``torch.random.fork_rng`` does.  Tracing
the first would hand JAX's objects to it; the second handle generators and streams, which no graph can hold.
"""

from __future__ import annotations

import inspect
import types

import torch


def never_trace(function) -> None:
    """Keep Dynamo from the frames of this function and of those defined in it, and from all that they call.

    Costs nothing at run time.
    """
    frames = torch._C._dynamo.eval_frame  # the C part, which is there before Dynamo is imported
    skip = frames._FrameAction.SKIP
    waiting = [inspect.unwrap(function).__code__]
    while waiting:
        code = waiting.pop()
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def never_trace_module(module) -> None:
    """:func:`never_trace` for the functions that a module defines."""
    for function in vars(module).values():
        if inspect.isfunction(function) and function.__module__ == module.__name__:
            never_trace(function)
