"""What the depth of a model costs to compile: 2 to 64 Llama layers, the equal ones compiled once or all in one program.

For each width and depth: seconds of PyTorch's part (Dynamo and AOTAutograd), of tracing to XLA, of XLA's compiler,
and milliseconds a call. The two ways take turns, on the same weights; the layers share one set of weights, so that
64 of them fit into memory.

    python benchmarks/depth.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import report
import torch

WAYS = ("apart", "whole")


def model(hidden: int, layers: int) -> torch.nn.Module:
    """A Llama decoder of transformers with random weights, on the device."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    heads = hidden // 64
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 8 // 3, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads // 3 if heads % 3 == 0 else heads // 4, vocab_size=128, use_cache=False,
    )  # fmt: skip
    decoder = LlamaModel(config).eval()
    for layer in decoder.layers[1:]:
        for mine, first in zip(layer.parameters(), decoder.layers[0].parameters()):
            mine.data = first.data  # the parameters stay different ones; their memory is made again on the device
    return decoder.to("tpu")


def compile_once(decoder: torch.nn.Module, tokens: torch.Tensor, way: str) -> tuple[object, dict]:
    """(the compiled decoder, seconds of each part of its first call)."""
    from systolic.compile import executables, stages

    least, stages.LEAST_LAYERS = stages.LEAST_LAYERS, stages.LEAST_LAYERS if way == "apart" else sys.maxsize
    torch._dynamo.reset()
    before = (executables.statistics.trace_seconds, executables.statistics.compile_seconds)
    started = time.perf_counter()
    compiled = torch.compile(decoder, backend="tpu")
    compiled(tokens).last_hidden_state.cpu()
    total = time.perf_counter() - started
    stages.LEAST_LAYERS = least
    lowering = executables.statistics.trace_seconds - before[0]
    compiling = executables.statistics.compile_seconds - before[1]
    return compiled, {"torch_s": total - lowering - compiling, "trace_s": lowering, "compile_s": compiling}


def measure(hidden: int, layers: int, length: int, calls: int) -> dict:
    decoder = model(hidden, layers)
    tokens = torch.randint(0, 128, (1, length)).to("tpu")
    with torch.no_grad():
        ways, figures, times = {}, {}, {way: [] for way in WAYS}
        for way in WAYS:
            ways[way], figures[way] = compile_once(decoder, tokens, way)
        for _ in range(calls):
            for way, call in ways.items():
                started = time.perf_counter()
                call(tokens).last_hidden_state.cpu()
                times[way].append((time.perf_counter() - started) * 1e3)
    for way in WAYS:
        figures[way]["call_ms"] = statistics.median(times[way])
    ratio = statistics.median(a / b for a, b in zip(times["apart"], times["whole"]))
    return {"hidden": hidden, "layers": layers, **figures, "call_apart_over_whole": ratio}


def show(result: dict) -> str:
    header = ["hidden", "layers", "way", "torch s", "trace s", "compile s", "call ms", "apart / whole"]
    rows = [
        [case["hidden"], case["layers"], way, *case[way].values(), case["call_apart_over_whole"]]
        for case in result["cases"] for way in WAYS
    ]  # fmt: skip
    return report.table(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[576, 2048])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 32, 64])
    parser.add_argument("--length", type=int, default=16, help="tokens a call")
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument("--output", type=Path, default=report.RESULTS / "depth.json")
    options = parser.parse_args()
    from systolic import settings

    settings.apply({"program_cache": False}, "this benchmark")
    cases = []
    for hidden in options.hidden:
        for layers in options.layers:
            print(f"hidden {hidden}, {layers} layers ...", file=sys.stderr)
            cases.append(measure(hidden, layers, options.length, options.calls))
    result = report.record("depth", length=options.length, versions={"torch": torch.__version__}, cases=cases)
    print(show(result))
    report.write(result, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
