"""`systolic serve [MODEL] [any vllm serve option]`: early checks, then vLLM's own command."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Sequence

from systolic import announce, settings
from systolic.cli_errors import EXIT_USAGE, explain, fail

USAGE = """usage: systolic serve [MODEL] [any vllm serve option]

Serves MODEL (a folder, or a name on a model hub) on the `tpu` device with vLLM's OpenAI API, port 8000.
With no MODEL it is SmolLM2-135M-Instruct, which is downloaded and converted the first time.

  systolic serve --port 8001 --max-model-len 2048
  systolic serve ./my-model --served-model-name mine

Every option of `vllm serve` works; `systolic serve --help=all` lists them.
"""
DEFAULT_PORT = 8000
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*(/[\w.\-]+)?")
# What vLLM gives KeyboardInterrupt to say when it was SIGTERM.
TERMINATED = "terminated"
# What a shell reports for Ctrl-C.
EXIT_INTERRUPTED = 130


class UsageError(ValueError):
    """The command cannot work as given; found before anything heavy was imported."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for, as far as it matters before vLLM reads it."""

    model: str | None
    options: list[str]
    host: str | None
    port: int
    names: list[str]

    def has(self, *names: str) -> bool:
        """True when one of the options `names` is given."""
        return any(_option(argument)[0] in names for argument in self.options)


def _option(argument: str) -> tuple[str, str | None]:
    """Name (with dashes, as vLLM normalises it) and value of `--name=value`; no value for `--name`."""
    if not argument.startswith("--"):
        return "", None
    name, equals, value = argument.partition("=")
    return name.replace("_", "-"), value if equals else None


def _values(options: Sequence[str], name: str) -> list[str]:
    """The values of the last `--name a b` or `--name=a` among `options`."""
    result: list[str] = []
    for index, argument in enumerate(options):
        found, value = _option(argument)
        if found != name:
            continue
        result = [value] if value is not None else []
        for following in options[index + 1 :] if value is None else ():
            if following.startswith("-"):
                break
            result.append(following)
    return result


def _without(options: Sequence[str], name: str) -> list[str]:
    """`options` without `--name VALUE` and `--name=VALUE`."""
    result, skip = [], False
    for argument in options:
        found, value = _option(argument)
        if found == name:
            skip = value is None
        elif skip:
            skip = False
        else:
            result.append(argument)
    return result


def _config_file(options: Sequence[str]) -> dict[str, Any]:
    """Content of vLLM's `--config` file, keys with dashes; empty without one."""
    paths = _values(options, "--config")
    if not paths:
        return {}
    import yaml

    try:
        content = yaml.safe_load(Path(paths[-1]).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"--config {paths[-1]}: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UsageError(f"--config {paths[-1]}: expected option names and values, got {kind}")
    return {str(key).replace("_", "-"): value for key, value in content.items()}


def parse(arguments: Sequence[str]) -> Request:
    """Read from `arguments` what the early checks need. Raises `UsageError`."""
    options = list(arguments)
    model = options.pop(0) if options and not options[0].startswith("-") else None
    config = _config_file(options)
    if model is None and (given := _values(options, "--model")):
        model, options = given[0], _without(options, "--model")
    if model is None and config.get("model"):
        model = str(config["model"])
    port = (_values(options, "--port") or [config.get("port", DEFAULT_PORT)])[-1]
    if not re.fullmatch(r"\d+", str(port)) or not 0 < int(port) < 65536:
        raise UsageError(f"--port {port} is not a port number; give one from 1 to 65535")
    host = (_values(options, "--host") or [config.get("host")])[-1]
    names = _values(options, "--served-model-name") or config.get("served-model-name") or []
    names = [names] if isinstance(names, str) else list(names)
    return Request(model, options, host, int(port), names)


def check_model(model: str) -> None:
    """Raise `UsageError` when `model` is a path without a model, or neither a path nor a hub name."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not any((path / name).exists() for name in ("config.json", "params.json")):
            raise UsageError(
                f"model folder {model} has no config.json; give the folder of a Hugging Face model"
            )
    elif not path.exists() and "://" not in model and not HUB_NAME.fullmatch(model):
        raise UsageError(f"model {model} does not exist; give an existing folder or a model hub name")


def _owner(port: int) -> str:
    """Who listens on `port`, in words; empty when the system does not say."""
    import psutil

    try:
        for connection in psutil.net_connections("inet"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr.port == port and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return ""


def check_port(host: str | None, port: int) -> None:
    """Raise `UsageError` when the server could not listen on `host` (None: all addresses) and `port`."""
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As vLLM does, so that a port which only waits out closed connections counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "", port))
            probe.listen(1)
        except PermissionError:
            raise UsageError(f"port {port} needs privileges; choose one above 1023 with --port") from None
        except socket.gaierror:
            raise UsageError(f"--host {host} is not an address of this machine") from None
        except OSError as error:
            reason = f"{(error.strerror or str(error)).lower()}{_owner(port)}"
            raise UsageError(
                f"cannot listen on port {port}: {reason}; choose another with --port"
            ) from None


def _end_start(number: int, _) -> None:
    """SIGTERM or Ctrl-C before the server runs: end this process and its children at once.

    Nothing is to be finished yet. An exception instead would be lost: imports and vLLM's waiting for its
    engine swallow one, or turn it into another error.
    """
    psutil = sys.modules["psutil"]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()
    for name in (settings.START_FAILURE_FILE, settings.METRICS_FILE):
        if name in os.environ:
            Path(os.environ[name]).unlink(missing_ok=True)
    os._exit(0 if number == signal.SIGTERM else EXIT_INTERRUPTED)


def _end_start_on_signals() -> None:
    # A signal handler must not import.
    importlib.import_module("psutil")
    signal.signal(signal.SIGTERM, _end_start)
    signal.signal(signal.SIGINT, _end_start)


def _keep_start_handler() -> None:
    """Keep vLLM from replacing `_end_start` while it starts its engine; its running server still does."""
    from vllm.entrypoints.launchers.api_server import entry

    def ignored(number: int, handler: object) -> None: ...

    entry.signal = SimpleNamespace(signal=ignored, SIGTERM=signal.SIGTERM, SIGINT=signal.SIGINT)


def _run_vllm(arguments: list[str]) -> int:
    """Run `vllm ARGUMENTS` in this process; returns the exit code."""
    debug = settings.current().log_level == "DEBUG"
    # vLLM's command would choose "spawn", which imports everything a second time in the engine process.
    # Forking is safe here: this process starts neither the XLA client nor a thread before it.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    # vLLM's command reads its arguments from here.
    sys.argv = ["vllm", *arguments]
    handle, os.environ[settings.START_FAILURE_FILE] = tempfile.mkstemp(prefix="systolic-start-")
    os.close(handle)
    try:
        from vllm.entrypoints.cli.main import main

        _keep_start_handler()
        main()
    except KeyboardInterrupt as stop:
        return 0 if str(stop) == TERMINATED else EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            raise
        return fail("serve", f"{explain(error)} (SYSTOLIC_LOG_LEVEL=DEBUG shows the traceback)")
    finally:
        Path(os.environ[settings.START_FAILURE_FILE]).unlink(missing_ok=True)
    return 0


def serve(arguments: Sequence[str]) -> int:
    """Run `systolic serve ARGUMENTS`; returns the exit code (2 when an early check fails)."""
    start = time.monotonic()
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE)
        return 0
    if importlib.util.find_spec("vllm") is None:
        return fail("serve", "vLLM is not installed here; `make setup` installs it", EXIT_USAGE)
    if any(argument.startswith("--help=") for argument in arguments):
        return _run_vllm(["serve", *arguments])
    try:
        request = parse(arguments)
        if request.model is not None:
            check_model(request.model)
        if not request.has("--uds", "--headless"):
            check_port(request.host, request.port)
    except UsageError as error:
        return fail("serve", error, EXIT_USAGE)

    model, options, names = request.model, request.options, request.names
    if model is None:
        from systolic.models import small_model

        try:
            model = str(small_model.ensure_small_model())
        except small_model.ModelError as error:
            return fail("serve", error)
        if not names:
            names = [small_model.NAME, model]
            options = [*options, "--served-model-name", *names]
    _end_start_on_signals()
    print(f"Serving {model} with vLLM on port {request.port}; Ctrl-C stops it.", flush=True)
    # Without TLS and on a TCP port, this process can ask the server whether it is ready.
    if not request.has("--uds", "--headless", "--ssl-certfile", "--grpc"):
        name = names[0] if names else model
        announce.start(request.host, request.port, name, request.has("--api-key"), start)
    return _run_vllm(["serve", model, *options])
