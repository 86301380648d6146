"""`systolic cache`: the folder of compiled programs."""

from __future__ import annotations

import argparse
import json
import tarfile
import time
from pathlib import Path

from systolic.cli_errors import fail
from systolic.settings import current, parse_bytes, shown_bytes

DAY = 86400.0


def add_parser(commands) -> None:
    """Add the command to the parser of `systolic`."""
    cache = commands.add_parser("cache", help="list, limit, check, export or import compiled programs")
    actions = cache.add_subparsers(dest="action", metavar="ACTION", required=True)
    ls = actions.add_parser("ls", help="show the stored programs, the most recently used first")
    ls.add_argument("--json", action="store_true", help="print JSON")
    prune = actions.add_parser("prune", help="remove the programs used least recently")
    prune.add_argument("--max-bytes", type=_size, metavar="SIZE", help="what may stay, such as 500MiB (default: the limit)")
    prune.add_argument("--unused-days", type=float, metavar="DAYS", help="also remove what was not used for so long")
    prune.add_argument("--all", action="store_true", help="remove everything")
    actions.add_parser("verify", help="check every file; damaged ones are removed and will be compiled again")
    export = actions.add_parser("export", help="write all programs to a tar file, for machines of the same kind")
    export.add_argument("file", type=Path)
    take = actions.add_parser("import", help="take the programs of a tar file")
    take.add_argument("file", type=Path)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _shown(size: float) -> str:
    return shown_bytes(size, decimals=1)


def run(options: argparse.Namespace) -> int:
    """Run the action; the exit code is 1 when it could not be done or found damaged files."""
    root = current().programs_dir
    try:
        return {"ls": _ls, "prune": _prune, "verify": _verify, "export": _export, "import": _import}[options.action](
            root, options
        )
    except (OSError, tarfile.TarError) as error:
        return fail("cache", f"{options.action}: {error}", 1)


def _ls(root: Path, options) -> int:
    from systolic.compile import store, stored

    rows = []
    for entry in stored.entries(root):
        try:
            name = entry.header().get("name", "?")
        except (OSError, store.Damaged) as error:
            name = f"damaged: {error}"
        rows.append({"key": entry.key, "name": name, "bytes": entry.size, "used": round(entry.used)})
    total, limit = sum(row["bytes"] for row in rows), current().program_cache_bytes
    if options.json:
        print(json.dumps({"folder": str(root), "bytes": total, "limit": limit, "programs": rows}, indent=1))
        return 0
    for row in rows:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used"]))
        print(f"{row['key'][:12]}  {_shown(row['bytes']):>10}  {used}  {row['name']}")
    print(f"{len(rows)} programs, {_shown(total)} of {_shown(limit) if limit else 'no limit'}, in {root}")
    return 0


def _prune(root: Path, options) -> int:
    from systolic.compile import stored

    limit = current().program_cache_bytes or float("inf")
    if options.all:
        limit = -1
    elif options.max_bytes is not None:
        limit = options.max_bytes
    unused = None if options.unused_days is None else options.unused_days * DAY
    removed = stored.prune(root, limit, unused_for=unused)
    print(f"removed {removed.count} programs, {_shown(removed.size)}")
    return 0


def _verify(root: Path, options) -> int:
    from systolic.compile import stored

    whole, damaged = stored.verify(root)
    for entry, problem in damaged:
        print(f"{entry.key}: {problem}; removed")
    print(f"{whole.count} programs are whole ({_shown(whole.size)}), {len(damaged)} were damaged")
    return 1 if damaged else 0


def _export(root: Path, options) -> int:
    from systolic.compile import stored

    written = stored.export(root, options.file)
    print(f"wrote {written.count} programs, {_shown(written.size)}, to {options.file}")
    return 0


def _import(root: Path, options) -> int:
    from systolic.compile import stored

    added, present, refused = stored.import_from(options.file, root)
    for name in refused:
        print(f"{name}: no whole program; left out")
    print(f"added {added.count} programs, {_shown(added.size)}; {present.count} were there already")
    return 1 if refused else 0
