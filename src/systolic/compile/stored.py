"""The folder of stored programs as a whole: listing, limits, checks, and moving programs between machines."""

from __future__ import annotations

import io
import re
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from . import store

_NAME = re.compile(r"([0-9a-f]{64})" + re.escape(store.SUFFIX))
# A part file this old belongs to a writer that was killed.
_STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class Stored:
    """One file: its key, size in bytes, and when it was last used (seconds since 1970)."""

    key: str
    path: Path
    size: int
    used: float

    def header(self) -> dict:
        """What was noted with the program.  Raises store.Damaged, OSError."""
        return store.unpack(self.path.read_bytes())[0]


@dataclass
class Count:
    """How many files, and their bytes."""

    count: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        self.count += 1
        self.size += size


def entries(root: Path) -> list[Stored]:
    """Every stored program, the most recently used first."""
    found = []
    for path in root.glob(f"??/*{store.SUFFIX}"):
        match = _NAME.fullmatch(path.name)
        try:
            status = path.stat()
        except OSError:
            continue  # removed meanwhile
        if match:
            found.append(Stored(match[1], path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


def prune(root: Path, limit: int, keep: int | None = None, unused_for: float | None = None) -> Count:
    """Remove programs used least recently.

    Args:
        limit: bytes that may stay; nothing is removed for size while all are within it.
        keep: bytes to cut to when they are not (default: ``limit``).
        unused_for: seconds; programs that were not used for longer go in any case.
    """
    removed, now = Count(), time.time()
    everything = entries(root)
    allowed = limit if sum(e.size for e in everything) <= limit else (limit if keep is None else keep)
    total = 0
    for entry in everything:
        total += entry.size
        if total <= allowed and (unused_for is None or now - entry.used <= unused_for):
            continue
        entry.path.unlink(missing_ok=True)
        removed.add(entry.size)
        total -= entry.size
    _remove_stale_parts(root, now)
    return removed


def _remove_stale_parts(root: Path, now: float) -> None:
    for path in root.glob("??/.*.part"):
        try:
            if now - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()
        except OSError:
            pass


def verify(root: Path) -> tuple[Count, list[tuple[Stored, str]]]:
    """(whole programs, damaged ones with what is wrong).  Damaged ones are removed: they would be compiled again."""
    whole, damaged = Count(), []
    for entry in entries(root):
        try:
            entry.header()
            whole.add(entry.size)
        except store.Damaged as error:
            damaged.append((entry, str(error)))
            entry.path.unlink(missing_ok=True)
        except OSError:
            continue  # removed meanwhile
    return whole, damaged


def export(root: Path, target: Path) -> Count:
    """Write all whole programs to a tar file.  Raises OSError."""
    written = Count()
    with tarfile.open(target, "w") as archive:
        for entry in entries(root):
            try:
                raw = entry.path.read_bytes()
                store.unpack(raw)
            except (OSError, store.Damaged):
                continue
            member = tarfile.TarInfo(entry.path.name)
            member.size, member.mtime = len(raw), int(entry.used)
            archive.addfile(member, io.BytesIO(raw))
            written.add(len(raw))
    return written


def import_from(source: Path, root: Path) -> tuple[Count, Count, list[str]]:
    """Take the programs of a tar file.

    Returns (programs added, programs that were there already, names of members that are no whole program).  A
    program of another kind of machine or version does no harm: it has another key and is never looked up.

    Raises:
        OSError: the file cannot be read or the folder not written.
        tarfile.TarError: it is no tar file.
    """
    added, present, refused = Count(), Count(), []
    with tarfile.open(source) as archive:
        for name, raw in _members(archive):
            match = _NAME.fullmatch(name)
            try:
                if match is None or raw is None:
                    raise store.Damaged("no program")
                store.unpack(raw)
            except store.Damaged:
                refused.append(name)
                continue
            path = store.path_of(match[1], root)
            if path.exists():
                present.add(len(raw))
            else:
                store.put(path, raw)
                added.add(len(raw))
    return added, present, refused


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes | None]]:
    for member in archive:
        file = archive.extractfile(member) if member.isfile() else None
        yield member.name, file.read() if file else None
