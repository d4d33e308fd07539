"""``python -m benchmarks.gpu.wheelhouse DIR``: the folder of wheels that ``python -m benchmarks.gpu --wheels`` takes.

It holds what the measurement needs beyond torch, ``transformers`` and what those bring, for Python 3.12 on x86-64 Linux
whatever this machine is, in the versions of ``requirements/test.txt``. Left out: pyarrow and
pandas (60 MB; synthetic data need neither) and Transformer Engine (it is built against one torch).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.base.units import MIB

LIMIT_BYTES = 60 * MIB

PACKAGES = (
    # The launcher's own.
    "hydra-core", "omegaconf", "pyyaml", "nvidia-ml-py", "platformdirs", "submitit", "cloudpickle", "typing-extensions",
    "rich", "markdown-it-py", "mdurl", "pygments",
    # Adapters, 4-bit weights, fp8, low-bit optimizers, fused kernels.
    "peft", "accelerate", "psutil", "bitsandbytes", "torchao", "liger-kernel",
    # TRL's.
    "trl", "datasets", "dill", "multiprocess", "xxhash",
    # DeepSpeed's.
    "einops", "hjson", "msgpack", "ninja", "py-cpuinfo", "pydantic", "pydantic-core", "annotated-types",
    "typing-inspection", "tqdm",
    # With the local implementation of its modules.
    "megatron-core",
)  # fmt: skip

BUILT = ("antlr4-python3-runtime", "deepspeed")
"""Published as sources only; both become wheels of pure Python, DeepSpeed with ``DS_BUILD_OPS=0``."""

OTHER_ACCELERATORS = re.compile(r"libbitsandbytes_(cuda1[12]\d|rocm|xpu)")
"""Libraries of bitsandbytes (38 MiB of 41) for CUDA before 13, with which no torch of today's default wheels is built,
and for other makers' cards."""

_PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2010", "2014")


class WheelhouseError(Exception):
    """The folder cannot be made; the message is for the user."""


def main(words: list[str] | None = None) -> int:
    """Fill the folder, list it, and end with 1 where it cannot be made or is too large."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.wheelhouse", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="emptied of wheels and filled")
    folder: Path = parser.parse_args(words).folder
    try:
        fill(folder, pins((Path(__file__).parents[2] / "requirements" / "test.txt").read_text()))
        print("\n".join(table(folder)))
        check_size(folder)
    except WheelhouseError as error:
        print(f"benchmarks.gpu.wheelhouse: {error}", file=sys.stderr)
        return 1
    return 0


def pins(text: str) -> dict[str, str]:
    """Version by name, of a requirements file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def fill(folder: Path, versions: Mapping[str, str]) -> None:
    """Download and build every wheel; the folder changes only when all are there.

    Raises:
        WheelhouseError: pip could not get one; its own words say why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [word for name in _PLATFORMS for word in ("--platform", _tag(name))]
    target = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *platforms]
    with tempfile.TemporaryDirectory(dir=folder) as made:
        _pip("download", *target, "--dest", made, *_pinned(PACKAGES, versions))
        _pip("wheel", "--no-deps", "--wheel-dir", made, *_pinned(BUILT, versions))
        for old in folder.glob("*.whl"):
            old.unlink()
        for wheel in Path(made).glob("*.whl"):
            if wheel.name.startswith("bitsandbytes-"):
                leave_out(wheel, OTHER_ACCELERATORS)
            wheel.rename(folder / wheel.name)


def leave_out(wheel: Path, pattern: re.Pattern[str]) -> None:
    """Write a wheel without the files whose names match."""
    smaller = wheel.with_suffix(".smaller")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            if not pattern.search(member.filename):
                new.writestr(member, old.read(member))
    smaller.replace(wheel)


def table(folder: Path) -> list[str]:
    """One line per wheel, the largest first, and the total."""
    sizes = sorted(((wheel.stat().st_size, wheel.name) for wheel in folder.glob("*.whl")), reverse=True)
    rows = [f"{size / MIB:7.2f} MiB  {name}" for size, name in sizes]
    return [*rows, f"{sum(size for size, _ in sizes) / MIB:7.2f} MiB  in {len(sizes)} wheels, {folder}"]


def check_size(folder: Path) -> None:
    """Raise WheelhouseError if the folder is too large to copy to a machine that is available for minutes.

    Raises:
        WheelhouseError: It is larger.
    """
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > LIMIT_BYTES:
        raise WheelhouseError(f"{folder} holds {size / MIB:.1f} MiB; the rule is {LIMIT_BYTES // MIB} MiB at most")


def _tag(glibc: str) -> str:
    return f"manylinux{'_' if '_' in glibc else ''}{glibc}_x86_64"


def _pinned(names: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    missing = [name for name in names if name not in versions]
    if missing:
        raise WheelhouseError(f"requirements/test.txt has no version of {', '.join(missing)}: run `make lock`")
    return [f"{name}=={versions[name]}" for name in names]


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]]
    done = subprocess.run(
        command, env={**os.environ, "DS_BUILD_OPS": "0"}, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise WheelhouseError(f"pip {words[0]} ended with status {done.returncode}:\n{done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
