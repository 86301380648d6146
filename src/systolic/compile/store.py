"""Programs on disk: one checksummed file a program, written atomically.

A file that is torn or altered fails its checksum and counts as absent.  Writers never lock: the last
of two equal writers wins, with equal contents.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from ..settings import current

log = logging.getLogger("systolic.compile")
_DIGEST = 32
_failed = False


def folder() -> Path:
    """Where programs are kept."""
    return Path(current().cache_dir) / "programs"


def enabled() -> bool:
    """False when the setting is off or the folder turned out not to be writable."""
    return current().program_cache and not _failed


def _path(key: str) -> Path:
    return folder() / key[:2] / f"{key}.xla"


def read(key: str) -> bytes | None:
    """The payload stored under ``key``, or None."""
    if not enabled():
        return None
    try:
        raw = _path(key).read_bytes()
    except OSError:
        return None
    payload = raw[_DIGEST:]
    if hashlib.sha256(payload).digest() != raw[:_DIGEST]:
        log.warning("stored program %s is damaged and is ignored", key[:12])
        discard(key)
        return None
    return payload


def write(key: str, payload: bytes) -> None:
    """Store a payload; a full or read-only disk is reported once and otherwise harmless."""
    global _failed
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        _failed = True
        log.warning("programs are not stored: %s (cache folder %s)", error, folder())


def discard(key: str) -> None:
    """Remove a stored program if it is there."""
    try:
        _path(key).unlink()
    except OSError:
        pass
