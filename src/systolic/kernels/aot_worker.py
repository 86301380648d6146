"""Compiles kernels with the real TPU compiler, without a TPU: the child process of :mod:`systolic.kernels.aot`.

Reads one task a line (JSON: kernel, entry, generation, tuning) from stdin and answers each with one line of JSON.
It is a process of its own because the TPU compiler may hang or abort, and because what it needs from the
environment must not reach the rest of the program.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax.experimental import topologies

from systolic.kernels import registry, selection
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.schedule_dump import read_schedule


@functools.cache
def _device(generation: str):
    topology = topologies.get_topology_desc(platform="tpu", topology_name=GENERATIONS[generation].topology)
    return topology.devices[0]


def compile_entry(task: dict, dump: Path | None) -> dict:
    """Compile one entry.  The answer has ``seconds`` and either the figures or ``error``."""
    proof = registry.proof(task["kernel"])
    entry = proof.entries[task["entry"]]
    tuning = proof.tuning(**task["tuning"])
    started = time.perf_counter()
    try:
        compiled = _compile(proof, entry, tuning, _device(task["generation"]))
    except Exception as error:
        return {"seconds": time.perf_counter() - started, "error": f"{type(error).__name__}: {error}"[:4000]}
    seconds = time.perf_counter() - started
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    answer = {
        "seconds": round(seconds, 1), "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes, "kernels": text.count("tpu_custom_call"),
    }  # fmt: skip
    if dump is not None:
        answer |= read_schedule(dump)
    return answer


def _compile(proof, entry, tuning, device):
    sharding = jax.sharding.SingleDeviceSharding(device)
    arguments = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
                 for name, (shape, dtype) in entry.arguments.items()}  # fmt: skip
    names = list(arguments)

    def call(*values):
        return proof.pallas(**dict(zip(names, values)), **entry.options, tuning=tuning)

    donated = tuple(names.index(name) for name in entry.donated)
    # Pallas asks the mesh for the kind of device, since the default one is the CPU.
    mesh = jax.sharding.Mesh(np.array([device]), ("x",)).abstract_mesh
    with selection.aim(device), jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(call, donate_argnums=donated).trace(*arguments.values())
        return traced.lower(lowering_platforms=("tpu",)).compile()


def main(dump_folder: str) -> None:
    """Answer tasks until stdin ends."""
    dump = Path(dump_folder) if dump_folder else None
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        if dump is not None:
            for child in dump.iterdir():
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        answer = compile_entry(json.loads(line), dump)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
