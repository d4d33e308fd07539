"""The folder of wheels: how it is filled, and how a bare machine takes from it what it lacks."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import wheelhouse
from benchmarks.gpu.wheels import WheelError, unpack_missing


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


def test_what_is_missing_is_unpacked_where_an_installer_would_put_it(tmp_path: Path) -> None:
    files = {
        "not_here.py": "FOUND = 1\n",
        "not_here-1.2.data/scripts/tool": "#!/bin/sh\n",
        "not_here-1.2.data/purelib/beside.py": "",
        "not_here-1.2.data/headers/unused.h": "",
    }
    wheel(tmp_path, "not_here-1.2-py3-none-any.whl", files)
    wheel(tmp_path, "pytest-0.1-py3-none-any.whl", {"pytest.py": "raise SystemExit"})
    target = tmp_path / "packages"
    assert unpack_missing(tmp_path, target) == ["not_here 1.2"]
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert found == ["beside.py", "bin/tool", "not_here.py"]
    assert os.access(target / "bin" / "tool", os.X_OK)


@pytest.mark.parametrize("tags", ["cp39-cp39-manylinux_2_17_x86_64", "py3-none-win_amd64", "cp399-abi3-any"])
def test_a_wheel_for_another_machine_is_refused(tags: str, tmp_path: Path) -> None:
    wheel(tmp_path, f"not_here-1.2-{tags}.whl", {"not_here.py": ""})
    with pytest.raises(WheelError, match="this wheel is not for Python 3"):
        unpack_missing(tmp_path, tmp_path / "packages")


def test_a_wheel_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, "not_here-1.2-py3-none-any.whl", {"not_here.py": "x" * 1000})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(WheelError, match=r"it cannot be unpacked into .*; copy it again"):
        unpack_missing(tmp_path, tmp_path / "packages")


def test_the_folder_holds_pinned_versions_of_all_that_it_names() -> None:
    text = (Path(wheelhouse.__file__).parents[2] / "requirements" / "test.txt").read_text()
    assert {*wheelhouse.PACKAGES, *wheelhouse.BUILT} <= wheelhouse.pins(text).keys()
    assert not {"torch", "transformers"} & {*wheelhouse.PACKAGES, *wheelhouse.BUILT}


def test_a_package_without_a_pin_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(wheelhouse.WheelhouseError, match=r"has no version of hydra-core, .*: run `make lock`"):
        wheelhouse.fill(tmp_path, {})


def test_a_folder_that_is_too_large_to_carry_is_an_error(tmp_path: Path) -> None:
    for name, size in (("a-1-py3-none-any.whl", 1), ("b-1-py3-none-any.whl", wheelhouse.LIMIT_BYTES)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    assert [line.split()[2] for line in wheelhouse.table(tmp_path)[:2]] == [
        "b-1-py3-none-any.whl",
        "a-1-py3-none-any.whl",
    ]
    with pytest.raises(wheelhouse.WheelhouseError, match=r"holds 60\.0 MiB; the rule is 60 MiB at most"):
        wheelhouse.check_size(tmp_path)


def test_a_wheel_is_written_again_without_the_libraries_for_other_cards(tmp_path: Path) -> None:
    path = wheel(tmp_path, "bitsandbytes-1-py3-none-any.whl", {"libbitsandbytes_cuda128.so": "x", "cuda130.so": "y"})
    wheelhouse.leave_out(path, wheelhouse.OTHER_ACCELERATORS)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["cuda130.so"]
