"""Packages that a machine lacks, unpacked from a folder of wheels beside the machine's own packages.

A wheel is a zip archive of what lies in ``site-packages`` (the binary distribution format of the Python packaging
guide), so neither pip nor a virtual environment is needed, and torch stays the machine's own. This module needs nothing
but the standard library, since it is what brings the rest.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import zipfile
from pathlib import Path


class WheelError(Exception):
    """The folder of wheels cannot be used here; the message is for the user."""


def unpack_missing(folder: Path, target: Path) -> list[str]:
    """Unpack every wheel of a folder whose package this Python does not find.

    Args:
        folder: The wheels.
        target: Where to; it is to be put on the path afterwards.

    Returns:
        Name and version of each that was unpacked.

    Raises:
        WheelError: There are no wheels, or one is for another Python or machine, or is no zip archive.
    """
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise WheelError(f"--wheels {folder}: there is no wheel in it; `make gpu-wheels` fills build/gpu-wheels")
    unpacked = []
    for wheel in wheels:
        name, version = wheel.stem.split("-")[:2]
        if _is_installed(name):
            continue
        if not _fits(wheel):
            here = f"Python {platform.python_version()} on {platform.machine()}"
            raise WheelError(f"{wheel}: this wheel is not for {here}; `make gpu-wheels` makes them for 3.12 on x86_64")
        try:
            _unpack(wheel, target)
        except (zipfile.BadZipFile, OSError) as error:
            raise WheelError(f"{wheel}: it cannot be unpacked into {target} ({error}); copy it again") from error
        unpacked.append(f"{name} {version}")
    return unpacked


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _fits(wheel: Path) -> bool:
    """True if the tags of a wheel's name are of this Python and processor."""
    python, abi, system = wheel.stem.split("-")[-3:]
    version = f"{sys.version_info[0]}{sys.version_info[1]}"
    own = {f"cp{version}", f"py{version}", "py3"}
    stable = abi == "abi3" and python.startswith("cp3") and int(python[3:]) <= sys.version_info[1]
    suits = stable or bool(own & set(python.split(".")))
    return suits and (system == "any" or (sys.platform == "linux" and system.endswith(platform.machine())))


def _unpack(wheel: Path, target: Path) -> None:
    """Unpack one wheel; the content of ``NAME.data/`` goes to where an installer would put it."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            first, _, rest = member.filename.partition("/")
            if not first.endswith(".data"):
                archive.extract(member, target)
                continue
            kind, _, inner = rest.partition("/")
            if member.is_dir() or kind not in ("purelib", "platlib", "scripts"):
                continue
            place = (target / "bin" if kind == "scripts" else target) / inner
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(archive.read(member))
            if kind == "scripts":
                place.chmod(0o755)
