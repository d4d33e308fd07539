"""Branches, loops, functions and text that is run: which commands a script would start, and what decides."""

from __future__ import annotations

import pytest

from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.follower import Script
from launcher.importers.megatron.shell.machine import follow
from launcher.importers.megatron.shell.tree import ShellError


def script(text: str, **given: str) -> Script:
    return follow(
        text, {name.removeprefix("_"): value for name, value in given.items()}, lambda words: words[0] == "run"
    )


def runs(text: str, **given: str) -> list[str]:
    return [
        marks.plain(" ".join(command.words[1:]))
        for command in script(text, **given).commands
        if command.words[0] == "run"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('if [ -z "$X" ]; then X=8; fi; run $X', ["8"]),
        ('[ -z "$X" ] && X=8; run $X', ["8"]),
        ('[[ -n $X ]] || X=8; run $X', ["8"]),
        ('[ "x$X" = x ] && X=8; run $X', ["8"]),
        ('X=$1; if [ -z "$X" ]; then X=8; fi; run $X', ["8"]),
        ("if [ $# -eq 0 ]; then X=8; else X=$1; fi; run $X", ["8"]),
        ('if [ "$#" -ne 2 ]; then echo "usage"; exit 1; fi; run ok', ["ok"]),
        ('[ -z "$1" ] && { echo usage; exit 1; }; run ok', ["ok"]),
        ("usage() { echo u; exit 1; }; [ -d data ] || usage; run ok", ["ok"]),
        ("cd /x || exit 1; run ok", ["ok"]),
        ("while [[ $# -gt 0 ]]; do X=$1; shift; done; run ${X:-none}", ["none"]),
        (
            'T=$(getopt a "$@"); eval set -- "$T"; while :; do case $1 in -a) shift;; --) break;; esac; done; run ok',
            ["ok"],
        ),
        ("while getopts 'a:' o; do A=$OPTARG; done; run ${A:-none}", ["none"]),
        ("while true; do run again; sleep 5; done", ["again"]),
        ("while read -r line; do X=$line; done < hosts; run ok", ["ok"]),
        ("for f in a b; do [ $f = b ] && break; run $f; done; run end", ["a", "end"]),
        ("set -- a b; run $2; exit 0; run never", ["b"]),
        ("f() { return 1; run never; }; f || run failed", ["failed"]),
        ("CMD='run a'; bash -c \"$CMD.py b\"", ["a.py b"]),
        ("V=1; srun -N 1 bash -lc 'cd x; run $V'", ["1"]),
        ("ssh host \"cd x && run x.py $((1 + 1))\"", ["x.py 2"]),
        ("T=2; bash <<EOF\nrun x.py $T \\$T\nEOF", ["x.py 2 2"]),
        ("cat > job.sh <<'EOF'\nrun x.py\nEOF\nsbatch job.sh", ["x.py"]),
        ("echo run not; # run comment\nrun yes | tee log &", ["yes"]),
    ],
)  # fmt: skip
def test_a_script_starts_what_bash_would_start_where_nobody_gives_anything(text: str, expected: list[str]) -> None:
    assert runs(text) == expected


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("X=1; run $X", {"X": "2"}, ["2"]),
        ("X=${X:-1}; run $X", {"X": "2"}, ["2"]),
        ('X="$X --more"; run $X', {"X": "a"}, ["a --more"]),
        ("X=(a); X+=(b); run ${X[@]}", {"X": "c d"}, ["c d b"]),
        ("for X in 1 2; do run $X; done", {"X": "2"}, ["2"]),
        ("run $1 ${2:-d} $#", {"_1": "a"}, ["a d 1"]),
        (
            "while [ $# -gt 0 ]; do case $1 in --tp) T=$2; shift 2;; esac; done; run $T",
            {"_1": "--tp", "_2": "8"},
            ["8"],
        ),
        ("if [ -f x ]; then\nrun a; else run b; fi", {"line_1": "true"}, ["a"]),
        ("if [ -f x ]; then\nrun a; else run b; fi", {"line_1": "false"}, ["b"]),
        ("case $M in 7b) run small;; 70b) run large;; esac", {"M": "70b"}, ["large"]),
    ],
)
def test_given_values_are_the_environment_and_replace_plain_assignments(
    text: str, given: dict[str, str], expected: list[str]
) -> None:
    assert runs(text, **given) == expected


@pytest.mark.parametrize(
    ("text", "names", "hints"),
    [
        ('if [ "$P" = fp8 ]; then X=1; else X=2; fi; run $X', ("P",), ("P=fp8",)),
        ("if (( N > 1 )); then X=1; else X=2; fi; run $X", ("N",), ()),
        ("case $M in 7b) X=1;; 70b) X=2;; esac; run $X", ("M",), ("M=7b", "M=70b")),
        ("Y=$P; [[ $Y == a* ]] && X=1 || X=2; run $X", ("P",), ("P=a*",)),
        ("if [ -f x ]; then X=1; else X=2; fi; run $X", (), ()),
        ("G=$(nproc); if [ $G -gt 4 ]; then X=1; else X=2; fi; run $X", ("G",), ()),
    ],
)
def test_what_a_condition_decides_is_marked_with_the_variables_that_decide_it(
    text: str, names: tuple[str, ...], hints: tuple[str, ...]
) -> None:
    found = script(text)
    [word] = found.commands[-1].words[1:]
    decisions = [found.decisions[int(name[1:])] for name in marks.names(word) if name.startswith("?")]
    assert decisions
    assert {name for decision in decisions for name in decision.names} == {*names}
    assert {*hints} <= {hint for decision in decisions for hint in decision.hints}


def test_branches_that_leave_the_same_decide_nothing() -> None:
    found = script('if [ "$A" = 1 ]; then X=3; else X=3; LOG=$A; fi; run $X')
    assert all(map(marks.is_known, found.commands[0].words))


def test_a_file_that_is_sourced_is_named_and_one_that_prepares_the_machine_is_not() -> None:
    assert script("source ~/venv/bin/activate\n. ./sizes.sh\nrun").not_read == [(2, "./sizes.sh")]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("run 'a", "No closing quotation (line 1)"),
        ("if true; then run", "'fi' is missing (line 1)"),
        ("fi", "'fi' has no beginning (line 1)"),
        ("X=(a b", "')' of an array is missing (line 1)"),
        ("case x in a) run", "';;' or 'esac' is missing (line 1)"),
        ("run a\0b", "it holds control characters"),
        ("while :; do :; done", "a loop does not end within 1000 rounds (line 1)"),
        ("f() { f; }; f", "functions and scripts are nested deeper than 30"),
        ("{ " * 60, "statements are nested deeper than 40 (line 1)"),
        ("X=$(( " + "(" * 60 + ")" * 60 + " ))", "arithmetic is nested deeper than 40"),
        ("a;" * 20_000, "it holds more than 10,000 commands (line 1)"),
        (
            "for i in {1..999}; do for j in {1..999}; do :; done; done",
            "it takes more steps than a list of arguments should",
        ),
        ("X=a\n" + "X=$X$X\n" * 60, "its variables come to more than 128 KiB"),
    ],
)  # fmt: skip
def test_what_is_no_script_or_asks_for_too_much_is_refused(text: str, rule: str) -> None:
    with pytest.raises(ShellError) as caught:
        follow(text, {}, lambda _words: False)
    assert str(caught.value) == rule
