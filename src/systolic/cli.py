"""The `systolic` command: `serve`, `info`, `config`, `cache`, `zoo`, `kernels`.

Nothing heavy is imported here: `systolic --help` and every early error answer at once, without torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Sequence

from systolic import __version__, cli_cache, cli_kernels, cli_zoo
from systolic.cli_errors import EXIT_USAGE, fail

DESCRIPTION = "PyTorch's `tpu` device on XLA, and vLLM on it. Without a TPU it is XLA on the CPU."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="systolic", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"systolic {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser(
        "serve", help="serve a model with vLLM's OpenAI API: systolic serve [MODEL] [any vllm serve option]"
    )
    info = commands.add_parser("info", help="show platform, devices, memory, versions and cache folders")
    config = commands.add_parser("config", help="show every setting with its value, source and meaning")
    for command in (info, config):
        command.add_argument("--json", action="store_true", help="print JSON")
    cli_cache.add_parser(commands)
    cli_zoo.add_parser(commands)
    cli_kernels.add_parser(commands)
    return parser


def _config(as_json: bool) -> int:
    from systolic import settings

    entries = settings.entries()
    unknown = settings.unknown_environment()
    if unknown:
        print(f"systolic config: no setting reads {', '.join(unknown)}", file=sys.stderr)
    if as_json:
        print(json.dumps([vars(entry) for entry in entries], indent=2, default=str))
        return 0
    for entry in entries:
        print(f"{entry.name} ({entry.type}) = {entry.value}")
        print(f"    {entry.help}")
        print(f"    from: {entry.source}" + (f"; set with {entry.env}" if entry.env else ""))
    print('\nWith vLLM, set any of them by --additional-config \'{"systolic": {"NAME": VALUE}}\'.')
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return the exit code."""
    from systolic.settings import SettingError

    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        # vLLM parses the options of `serve`, so argparse must not see them.
        if arguments[:1] == ["serve"]:
            from systolic.cli_serve import serve

            return serve(arguments[1:])
        parsed = _parser().parse_args(arguments)
        if parsed.command == "config":
            return _config(parsed.json)
        if parsed.command == "cache":
            return cli_cache.run(parsed)
        if parsed.command == "zoo":
            return cli_zoo.run(parsed)
        if parsed.command == "kernels":
            return cli_kernels.run(parsed)
        from systolic.cli_info import info

        return info(parsed.json)
    except SettingError as error:
        return fail(arguments[0], error, EXIT_USAGE)


if __name__ == "__main__":
    sys.exit(main())
