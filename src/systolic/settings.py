"""Every setting of Systolic, in one registry: the fields of `Settings`.

A value comes from, later ones winning: the default, an environment variable (only where the field names
one), and `apply()`, which the vLLM plugin calls with `--additional-config '{"systolic": {...}}'`.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping

PREFIX = "SYSTOLIC_"
# Set by the API server for its engine process: the file through which it gets the engine's counters.
METRICS_FILE = "SYSTOLIC_METRICS_FILE"
START_FAILURE_FILE = "SYSTOLIC_START_FAILURE_FILE"
KERNEL_CHOICES = ("auto", "reference", "native", "interpret")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off")


class SettingError(ValueError):
    """A setting has an unknown name or a value that it cannot take."""


def _path(value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("give the path of a folder")
    return Path(value).expanduser().absolute()


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    if word not in TRUE_WORDS + FALSE_WORDS:
        raise ValueError("give true or false")
    return word in TRUE_WORDS


_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(value: Any) -> int:
    """A number of bytes: 1048576, "1048576" or "1MiB".  Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
    if isinstance(value, bool) or match is None or match[2].upper() not in _UNITS:
        raise ValueError("give a number of bytes, such as 4GiB, or 0 for no limit")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def shown_bytes(size: float, decimals: int) -> str:
    """A number of bytes for people: the counterpart of :func:`parse_bytes`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.{decimals}f} {unit}"
    return f"{size / 1024:.{decimals}f} TiB"


def _log_level(value: Any) -> str:
    if not isinstance(value, str) or value.upper() not in LOG_LEVELS:
        raise ValueError(f"give one of {', '.join(LOG_LEVELS)}")
    return value.upper()


def _kernels(value: Any) -> str:
    if value not in KERNEL_CHOICES:
        raise ValueError(f"give one of {', '.join(KERNEL_CHOICES)}")
    return value


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _path(base) / "systolic"


def _setting(parse: Callable[[Any], Any], help: str, env: str | None = None, **kwargs: Any) -> Any:
    return field(metadata={"parse": parse, "help": help, "env": env}, **kwargs)


@dataclass(frozen=True)
class Settings:
    """The values in force. Frozen: `current()` gives a new object after a change."""

    cache_dir: Path = _setting(
        _path,
        "folder for converted models and compiled programs",
        env="SYSTOLIC_CACHE_DIR",
        default_factory=_default_cache_dir,
    )
    log_level: str = _setting(
        _log_level,
        "least severe message shown; DEBUG also shows the traceback of a failed start",
        env="SYSTOLIC_LOG_LEVEL",
        default="INFO",
    )
    program_cache: bool = _setting(
        _flag,
        "keep compiled programs in cache_dir so that the next process need not compile them",
        default=True,
    )
    program_cache_bytes: int = _setting(
        parse_bytes,
        "largest size of the compiled programs in cache_dir, such as 4GiB; those used least recently go; 0: no limit",
        default=8 << 30,
    )
    kernels: str = _setting(
        _kernels,
        "which form of the kernels runs: auto; reference (plain jax.numpy); native (an error where there is none); "
        "interpret (the Pallas kernels for TPU in Pallas's interpreter, slow, for tests)",
        default="auto",
    )
    libtpu: Path | None = _setting(
        _path,
        "libtpu.so, or a folder in which pip installed libtpu, for `systolic kernels compile` without a TPU",
        env="SYSTOLIC_LIBTPU",
        default=None,
    )

    @property
    def models_dir(self) -> Path:
        """Folder of converted models."""
        return self.cache_dir / "models"

    @property
    def programs_dir(self) -> Path:
        """Folder of compiled programs."""
        return self.cache_dir / "programs"


@dataclass(frozen=True)
class Entry:
    """One line of `systolic config`: a setting's name, type name, value, where it came from, and meaning."""

    name: str
    type: str
    value: Any
    source: str
    env: str | None
    help: str


_applied: dict[str, tuple[Any, str]] = {}


def _field(name: str) -> dataclasses.Field:
    fields = {item.name: item for item in dataclasses.fields(Settings)}
    if name in fields:
        return fields[name]
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(fields)}"
    raise SettingError(f"unknown setting {name!r}: {hint}")


def _parse(item: dataclasses.Field, value: Any, source: str) -> Any:
    try:
        return item.metadata["parse"](value)
    except ValueError as error:
        raise SettingError(f"{source}: {item.name}={value!r} is not valid: {error}") from None


def _resolve(item: dataclasses.Field) -> tuple[Any, str]:
    if item.name in _applied:
        return _applied[item.name]
    env = item.metadata["env"]
    if env and os.environ.get(env):
        return _parse(item, os.environ[env], f"environment variable {env}"), f"environment variable {env}"
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory(), "default"
    return item.default, "default"


def current() -> Settings:
    """The settings in force now. Raises `SettingError` when an environment variable has an invalid value."""
    return Settings(**{item.name: _resolve(item)[0] for item in dataclasses.fields(Settings)})


def apply(values: Mapping[str, Any], source: str) -> Settings:
    """Set `values` (setting name to value) over the environment, and return the settings in force.

    `source` says where they come from, for `systolic config` and for errors. All of them are checked
    first: on `SettingError` (unknown name, invalid value) nothing has changed.
    """
    if not isinstance(values, Mapping):
        raise SettingError(f"{source}: expected an object of settings, got {values!r}")
    parsed = {name: (_parse(_field(name), value, source), source) for name, value in values.items()}
    _applied.update(parsed)
    return current()


def reset() -> None:
    """Forget what `apply` set."""
    _applied.clear()


def entries() -> list[Entry]:
    """Every setting with its type, value, source and explanation, in the order of the registry."""
    result = []
    for item in dataclasses.fields(Settings):
        value, source = _resolve(item)
        result.append(
            Entry(item.name, str(item.type), value, source, item.metadata["env"], item.metadata["help"])
        )
    return result


def unknown_environment() -> list[str]:
    """Names of `SYSTOLIC_*` environment variables that no setting reads: probably typing slips."""
    known = {item.metadata["env"] for item in dataclasses.fields(Settings)} | {METRICS_FILE, START_FAILURE_FILE}
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
