"""Programs on disk: one checksummed file a program, written atomically, the least recently used removed first.

A file is ``sha256 of the rest (32 bytes) | length of the header (4 bytes) | header (JSON) | payload``.  A file that
is torn or altered fails its checksum and counts as absent.  Writers never lock: the last of two equal
writers wins, with equal contents.  `systolic cache` works on the same folder (:mod:`systolic.compile.stored`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path

from ..settings import current

log = logging.getLogger("systolic.compile")
SUFFIX = ".xla"
_DIGEST, _LENGTH = 32, 4
# Bytes written by this process after which the folder's size is looked at again.
_LOOK_AGAIN = 64 << 20
# A folder that is too large is cut to this share of its limit, so that the next writes need no cut.
_KEPT_SHARE = 0.9
_failed = False
_unlooked: int | None = None  # bytes written since the last look; None before the first


class Damaged(ValueError):
    """A file that is not what was written."""


def folder() -> Path:
    """Where programs are kept."""
    return current().programs_dir


def enabled() -> bool:
    """False when the setting is off or the folder turned out not to be writable."""
    return current().program_cache and not _failed


def path_of(key: str, root: Path | None = None) -> Path:
    """The file of a key."""
    return (root or folder()) / key[:2] / f"{key}{SUFFIX}"


def pack(payload: bytes, header: dict) -> bytes:
    """A file's contents."""
    text = json.dumps(header).encode()
    rest = len(text).to_bytes(_LENGTH, "little") + text + payload
    return hashlib.sha256(rest).digest() + rest


def unpack(raw: bytes) -> tuple[dict, bytes]:
    """(header, payload) of a file's contents.  Raises Damaged."""
    rest = memoryview(raw)[_DIGEST:]
    if hashlib.sha256(rest).digest() != raw[:_DIGEST]:
        raise Damaged("the checksum is wrong")
    start = _LENGTH + int.from_bytes(rest[:_LENGTH], "little")
    try:
        header = json.loads(bytes(rest[_LENGTH:start]))
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise Damaged("there is no header")
    return header, bytes(rest[start:])


def read(key: str) -> bytes | None:
    """The payload stored under ``key``, or None."""
    if not enabled():
        return None
    path = path_of(key)
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    try:
        payload = unpack(raw)[1]
    except Damaged as error:
        log.warning("stored program %s is damaged and is ignored (%s)", key[:12], error)
        discard(key)
        return None
    try:
        os.utime(path)  # used now: the last to be removed
    except OSError:
        pass  # a folder that may only be read
    return payload


def write(key: str, payload: bytes, name: str) -> None:
    """Store a payload; a full or read-only disk is reported once and otherwise harmless."""
    global _failed
    if not enabled():
        return
    raw = pack(payload, {"name": name, "made": round(time.time())})
    try:
        put(path_of(key), raw)
        _stay_within_limit(len(raw))
    except OSError as error:
        _failed = True
        log.warning("programs are not stored: %s (cache folder %s)", error, folder())


def put(path: Path, raw: bytes) -> None:
    """Write a whole file or nothing.  Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def discard(key: str) -> None:
    """Remove a stored program if it is there."""
    try:
        path_of(key).unlink()
    except OSError:
        pass


def _stay_within_limit(written: int) -> None:
    global _unlooked
    if _unlooked is not None and _unlooked + written < _LOOK_AGAIN:
        _unlooked += written
        return
    _unlooked = 0
    from .stored import prune

    limit = current().program_cache_bytes
    if limit:
        removed = prune(folder(), limit, keep=int(limit * _KEPT_SHARE))
        if removed.count:
            log.info("removed %d programs used least recently: %s", removed.count, folder())
