"""One clear line for a failure at start, in place of a wall of tracebacks.

`SYSTOLIC_LOG_LEVEL=DEBUG` brings the tracebacks back.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import traceback
from pathlib import Path

from systolic.settings import START_FAILURE_FILE

EXIT_FAILURE = 1
EXIT_USAGE = 2
ENGINE_LOGGER = "vllm.v1.engine.core"
CLIENT_LOGGER = "vllm.v1.engine.async_llm"
ENGINE_START_FAILED = "EngineCore failed to start."
OUTPUT_HANDLER_FAILED = "AsyncLLM output_handler failed."
# What vLLM's server process raises when the engine process, which has its own log lines, did not start.
ENGINE_CHILD_FAILED = "Engine core initialization failed"


def fail(command: str, reason: object, code: int = EXIT_FAILURE) -> int:
    """Print `systolic COMMAND: REASON` on stderr and return `code`."""
    print(f"systolic {command}: {reason}", file=sys.stderr, flush=True)
    return code


def explain(error: BaseException) -> str:
    """One line that says what went wrong: the message of `error`, without types that say nothing."""
    if ENGINE_CHILD_FAILED in str(error):
        code = re.search(r"'EngineCore\w*': (-?\d+)", str(error))
        died = f"the engine process died while it started, exit code {code[1] if code else 'unknown'}"
        return _engine_reason() or f"{died}; the lines above are its last"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "the port is in use; choose another with --port"
    details = getattr(error, "errors", None)
    if callable(details) and details():
        # A pydantic error lists each invalid field; its text would also name a web page for every one.
        first = details()[0]
        field = ".".join(str(part) for part in first.get("loc", ()))
        message = str(first.get("msg", error)).removeprefix("Value error, ")
        return " ".join(f"{field}: {message}".removeprefix(": ").split())
    message = " ".join(str(error).split())
    if type(error).__module__.partition(".")[0] == "huggingface_hub":
        return f"the model cannot be fetched from the model hub: {message}"
    # These are raised with a message written for the reader; others mean little without their type.
    if isinstance(error, (ValueError, RuntimeError)) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _engine_reason() -> str:
    """What the engine process wrote down when it failed to start; empty when it could not."""
    try:
        return Path(os.environ[START_FAILURE_FILE]).read_text(encoding="utf-8")
    except (KeyError, OSError):
        return ""


class _OneLine(logging.Filter):
    """Turns two log messages of vLLM with a traceback into one line with the reason.

    They are "EngineCore failed to start." in the engine process, and in the API server "AsyncLLM
    output_handler failed.", which also appears when SIGTERM ends the engine before the server.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message not in (ENGINE_START_FAILED, OUTPUT_HANDLER_FAILED) or not record.exc_info:
            return True
        reason = explain(record.exc_info[1])
        record.msg, record.args = "%s %s", (message, reason)
        record.exc_info = record.exc_text = None
        if message == ENGINE_START_FAILED:
            # The error is raised again and multiprocessing would print it; this process ends right after.
            traceback.print_exc = lambda *args, **kwargs: None
            if START_FAILURE_FILE in os.environ:
                Path(os.environ[START_FAILURE_FILE]).write_text(reason, encoding="utf-8")
        return True


def install_engine_failure_filter() -> None:
    """Make a failure of vLLM's engine process one line. Called by the vLLM plugin in every process."""
    from systolic import settings

    if settings.current().log_level == "DEBUG":
        return
    for name in (ENGINE_LOGGER, CLIENT_LOGGER):
        logger = logging.getLogger(name)
        if not any(isinstance(f, _OneLine) for f in logger.filters):
            logger.addFilter(_OneLine())
