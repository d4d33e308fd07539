"""Host memory in use, as files of Linux tell it."""

from __future__ import annotations

from pathlib import Path

from launcher.base import machine

GIB = 2**30
MEMINFO = f"MemTotal:       {64 * 2**20} kB\nMemFree:  100 kB\nMemAvailable:   {24 * 2**20} kB\n"


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def in_use(folder: Path, membership: str, meminfo: str = MEMINFO) -> tuple[int, int] | None:
    (folder / "membership").write_text(membership)
    (folder / "meminfo").write_text(meminfo)
    return machine.memory_in_use(folder / "cgroups", folder / "membership", folder / "meminfo")


def test_a_machine_without_limits_tells_what_new_processes_cannot_have(tmp_path: Path) -> None:
    write(tmp_path / "cgroups" / "job", memory__max="max", memory__current=GIB)
    assert in_use(tmp_path, "0::/job\n") == (40 * GIB, 64 * GIB)


def test_a_jobs_group_counts_where_it_leaves_less_and_pages_of_idle_files_do_not(tmp_path: Path) -> None:
    write(
        tmp_path / "cgroups" / "slurm" / "job",
        memory__max=8 * GIB,
        memory__current=6 * GIB,
        memory__stat=f"anon 1\ninactive_file {2 * GIB}\nactive_file 7",
    )
    assert in_use(tmp_path, "0::/slurm/job/step\n") == (4 * GIB, 8 * GIB)


def test_groups_of_the_first_version_have_their_own_names(tmp_path: Path) -> None:
    write(
        tmp_path / "cgroups" / "memory" / "job",
        memory__limit_in_bytes=8 * GIB,
        memory__usage_in_bytes=6 * GIB,
        memory__stat=f"inactive_file 5\ntotal_inactive_file {GIB}",
    )
    assert in_use(tmp_path, "4:memory:/job\n") == (5 * GIB, 8 * GIB)


def test_nothing_is_told_where_there_is_no_such_file(tmp_path: Path) -> None:
    assert in_use(tmp_path, "", "") is None
    assert machine.process_memory(tmp_path / "status") is None


def test_pages_of_files_are_no_memory_of_a_process(tmp_path: Path) -> None:
    write(tmp_path, status="VmRSS:\t  900 kB\nRssAnon:\t  300 kB\nRssFile:\t  500 kB\nRssShmem:\t  100 kB")
    assert machine.process_memory(tmp_path / "status") == 400 * 1024
