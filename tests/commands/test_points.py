"""Many points in one go: the same answers in order whoever gives them, in memory that does not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.points import measured, points
from launcher.actions import points as command
from launcher.base import machine
from launcher.config.catalog import Catalog
from tests.support.slurm_runs import launch


@pytest.mark.thorough
def test_points_are_answered_in_memory_that_does_not_grow(tmp_path: Path) -> None:
    few = measured(islice(points(), 150), tmp_path)
    many = measured(islice(points(), 450), tmp_path)
    assert {"fits", "does_not_fit", "invalid"} <= set(many["verdicts"])
    assert many["peak_memory_bytes"] - few["peak_memory_bytes"] < 16 * 2**20


def test_processes_give_the_answers_of_one_in_order(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_text("\n".join(islice(points(seed=1), 50)) + "\nno point\n\n")
    answers = list(command.answers(path))
    assert [json.loads(text)["id"] for _, text in answers] == [*range(50), None]
    facts, catalog = machine.facts(), Catalog(folder=Path.cwd())
    lines: list[tuple[int, bytes | None]] = [
        (number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1) if line
    ]
    assert [verdict for verdict, _ in answers] == [
        verdict for verdict, _ in command._answer_batch(lines, facts, catalog)
    ]


def test_the_ways_out_of_a_point_are_the_single_changes_that_check_finds(tmp_path: Path) -> None:
    words = ["parallel=fsdp", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16"]
    cases = (["model=7b", "train.micro_batch_size=8", *words], ["model=70b", *words])
    path = tmp_path / "points.jsonl"
    path.write_text("\n".join(json.dumps({"id": 0, "overrides": case}) for case in cases))
    single, double = (json.loads(text) for _, text in command.answers(path))
    alone = launch("check", "--json", *cases[0]).json["fixes"]
    assert len(alone) > 1
    assert single["fixes"] == alone
    assert double["verdict"] == "does_not_fit"
    assert double["fixes"] == []
    assert launch("check", "--json", *cases[1]).json["fixes"]


LONG = "a" * 5000
BAD = {
    b'{"id": 1, "overrides": ["train.steps=' + b"9" * 400 + b'"]}': "a number must have fewer than 309 digits",
    b'{"id": 2, "overrides": ["train.steps=' + b"9" * 5000 + b'"]}': "a number must have fewer than 309 digits",
    b'{"id": 3, "overrides": ["train.steps=' + b"9" * 30 + b'"]}': "must fit in 64 bits, as every setting does",
    b'{"id": ' + b"9" * 5000 + b', "overrides": []}': "a number of 5000 digits, does not fit in 64 bits",
    b"[" * 100_000: "it is nested deeper than 12",
    b"\xff\xfe": "it is not UTF-8 text",
    b"\x00": "Expecting value",
    b"null": 'a point is {"id": ...',
    b'{"id": 4, "overrides": ["run.name=\\ud800"]}': "must be UTF-8 text without NUL characters",
    b'{"id": 5, "overrides": ["model=./a\\u0000b"]}': "must be UTF-8 text without NUL characters",
    b'{"id": 6, "overrides": ["model=/' + LONG.encode() + b'"]}': "the system refuses it: File name too long",
    b'{"id": 7, "overrides": ["run.directory=/' + LONG.encode() + b'"]}': "a folder name in it has 5000 bytes",
    b'{"id": 8, "overrides": ["' + b"x" * (1 << 21) + b'"]}': "it is longer than 1 MiB",
}
"""Lines that are wrong, each with a part of the rule of its answer."""

GOOD = b'{"id": "\\u001b", "overrides": ["model=tiny", "hardware.disk_bytes=1e15"]}'


def test_no_line_takes_another_down(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n\n".join(line for bad in BAD for line in (bad, GOOD)))
    done = launch("check", "--points", str(path))
    assert done.status == 0
    documents = [json.loads(line) for line in done.out.splitlines()]
    assert [each["verdict"] for each in documents] == ["invalid", "fits"] * len(BAD)
    for document, rule in zip(documents[::2], BAD.values(), strict=True):
        assert rule in document["errors"][0]["rule"]
        assert document.keys() == documents[1].keys()
    assert "\x1b" not in done.out


def test_a_program_that_waits_for_each_answer_gets_it() -> None:
    words = [sys.executable, "-m", "launcher", "check", "--points", "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(2):
            process.stdin.write(json.dumps({"id": number, "overrides": ["model=nope"]}).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.stdin.close()
        assert process.wait() == 2
