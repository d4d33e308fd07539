"""docs/contract names the verbs, options, keys and statuses of the code; pages are few, and their links resolve."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import get_args

import pytest

from launcher.base import errors, machine
from launcher.cli import VERBS, main
from launcher.commands import recipe
from launcher.config.catalog import Catalog
from launcher.estimate.memory.moments import PHASES
from launcher.estimate.memory.terms import PILES
from launcher.estimate.speed.terms import PARTS
from launcher.planner import document
from launcher.preflight.verdict import VerdictName
from launcher.rundir.state import State
from tests.support.helpers import CPU_HOST, ROOT
from tests.support.layouts import layout, plan_of

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *PAGES]


def section(page: str, title: str) -> str:
    """The text below a heading of a page of docs/contract, up to the next one of its level."""
    text = (DOCS / "contract" / f"{page}.md").read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/contract/{page}.md has no section {title!r}"
    return found[1]


def test_the_contract_names_every_verb() -> None:
    commands = section("commands", "Commands")
    named = set(re.findall(r"^\| `launch \[?([a-z]+)", commands, re.MULTILINE))
    assert named == set(VERBS)
    assert "|".join(recipe._FEWEST) in commands.replace("\\|", "|")


@pytest.mark.parametrize("verb", VERBS)
def test_the_contract_names_every_option_of_a_verb(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out))
    assert {"--help", "--json"} <= options
    assert options <= set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", section("commands", "Commands")))


def test_every_option_that_a_page_types_is_one_of_its_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    typed: dict[str, set[str]] = {}
    for page in DOCUMENTS:
        for verb, words in re.findall(r"(?:^ {4}\$? ?|`)launch (\w+)([^`#|\n]*)", page.read_text(), re.MULTILINE):
            found = re.findall(r"(?<=\s)--?[a-z][a-z-]*", words.partition(" -- ")[0])
            typed.setdefault(verb if verb in VERBS else "run", set()).update(found)
    assert sum(map(len, typed.values())) > 25
    for verb, options in typed.items():
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        known = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out)
        assert options <= {*known}, verb


def test_the_contract_names_every_exit_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    statuses = {0, errors.INTERRUPTED, *(kind.exit_status for kind in kinds if hasattr(kind, "exit_status"))}
    assert {
        int(status) for status in re.findall(r"^\| (\d+) \|", section("commands", "Exit status"), re.MULTILINE)
    } == statuses


def test_the_contract_names_every_group_and_its_keys() -> None:
    import yaml

    words = section("commands", "Words")
    catalog = Catalog(folder=ROOT)
    for group in catalog.groups:
        base = ROOT / "conf" / group / "_base.yaml"
        if not base.is_file():
            assert f"`{group}=" in words
            continue
        keys = " ".join(yaml.safe_load(base.read_text()))
        line = textwrap.fill(keys, 110, initial_indent=f"    {group:14} ", subsequent_indent=" " * 19)
        assert f"\n{line}\n" in words, f"docs/contract/commands.md should say of {group}:\n{line}"


def test_the_contract_names_the_keys_of_a_check_its_verdicts_piles_and_phases(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = section("documents", "`launch check --json`")
    assert main(["check", "model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    shown = said[said.index("{") : said.index("\n\nA pile")]
    assert re.findall(r'^ *\{?"([a-z_]+)":', shown, re.MULTILINE) == list(document)
    nested = [key for value in document.values() if isinstance(value, dict) for key in value]
    nested += [key for name in ("piles", "ranks") for key in document[name][0]]
    nested += [key for name in ("parts", "communication") for key in document["speed"][name][0]]
    assert len(nested) > 30
    assert all(f'"{key}"' in shown for key in nested)
    assert "|".join(get_args(VerdictName.__value__)) in shown
    assert all(f"`{pile}`" in said for pile in PILES)
    assert all(f"`{part}`" in said for part in PARTS)
    assert all(f'"{phase}"' in shown for phase in PHASES)


def test_the_contract_names_the_keys_of_a_plan() -> None:
    said = section("documents", "`launch plan --json`")
    found = document.as_dict(plan_of(layout("parallel=fsdp")))["plan"]
    keys = [*found, *found["layouts"][0], *found["assumptions"][0]]
    assert len(keys) > 20
    assert [key for key in keys if f'"{key}"' not in said] == []


def test_the_contract_names_the_keys_of_a_shown_job_and_the_states_of_a_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "model=tiny", "--json"]) == 0
    shown = section("documents", "`launch show --json`")
    assert all(f'"{key}"' in shown for key in json.loads(capsys.readouterr().out))
    states = section("documents", "`launch run --json`, `launch status --json` and the other verbs")
    assert all(f"`{state}`" in states for state in get_args(State.__value__))


def test_every_file_that_the_documents_name_exists() -> None:
    named = [(document, path) for document in DOCUMENTS for path in _paths(document.read_text())]
    assert len(named) > 60
    missing = [f"{document.name}: {path}" for document, path in named if not _exists(document, path)]
    assert missing == []


def test_every_link_of_the_documents_resolves() -> None:
    links = [(page, link) for page in DOCUMENTS for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page.read_text()))]
    assert len(links) > 80
    missing = []
    for page, link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in _anchors(target)):
            missing.append(f"{page.relative_to(ROOT)}: {link}")
    assert missing == []


def _prose(text: str) -> str:
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```$|^ {4}.*$", "", text, flags=re.MULTILINE | re.DOTALL if "```" in text else re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_door_has_a_line_for_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", (DOCS / "README.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in PAGES} - {"README.md"}
    assert pages <= linked


def test_the_documents_stay_few_and_short_of_line() -> None:
    assert 10 <= len(PAGES) <= _PAGES, "a new page takes the place of another, or becomes a section"
    readme = (ROOT / "README.md").read_text().splitlines()
    assert len(readme) <= _README_LINES
    first = "\n".join(readme[:42])
    assert "    $ launch check" in first
    assert "<!-- end of scoreboard -->" in first
    lines = [(page, line) for page in DOCUMENTS for line in page.read_text().splitlines()]
    long = [f"{page.name}: {line}" for page, line in lines if len(line) > _LINE and not line.startswith("|")]
    assert long == [], "wrap it, so that a change of it fits a diff"
    cells = [
        (page.name, cell)
        for page, line in lines
        if page.parent.name == "contract" and line.startswith("|")
        for cell in re.split(r"(?<!\\)\|", line)
    ]
    assert len(cells) > 200
    full = [cell for cell in cells if len(cell[1].split()) > _CELL_WORDS]
    assert full == [], "say the rest in lines below the table"


_PAGES = 14
_README_LINES = 120
_LINE = 200
"""Characters outside of tables: what a diff of two columns still shows."""

_CELL_WORDS = 25
"""Words of a cell of the contract: more are not read in a table."""


def test_every_command_that_the_readme_types_is_one_that_its_reader_can_type(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    said = (ROOT / "README.md").read_text()
    block = said[said.index("## What you type") : said.index("`group=option` chooses")]
    commands = [shlex.split(line, comments=True)[1:] for line in re.findall(r"^    (launch .+)$", block, re.MULTILINE)]
    plans = [words for words in commands if "--from" not in words and "|" not in words and words[0] not in _ACTING]
    assert len(plans) >= 6
    for words in plans:
        asks = words[0] in VERBS or words[0] == "--help"
        assert main(words if asks else ["check", *words]) == 0, words
        capsys.readouterr()
    assert [words for words in commands if f"run.name={_NAMED}" in words], "the run of `run --from` is made before"
    assert ["run", "--from", f"runs/{_NAMED}"] in commands


_ACTING = ("status", "why", "report", "doctor", "compare", "prepare", "rehearse", "resume")
_NAMED = "a"

_WRITTEN = {
    "conf/backend/acme.yaml",
    "conf/parallel/_acme.yaml",
    "conf/cluster/ours.yaml",
    "recipes/mine.yaml",
    "recipes/first.yaml",
}
"""Files that commands of the documents' examples write."""

_ROOMS = ("benchmarks", "conf", "docs", "launcher", "recipes", "requirements", "slurm", "tests")


def _paths(text: str) -> set[str]:
    """Paths of the checkout in code spans, code blocks and links; one with a placeholder names no file."""
    spans = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^ {4}(.+)$", text, re.MULTILINE)
    words = {word for span in spans for word in re.findall(r"[\w./<>*{},-]+", span)}
    inside = {word.rstrip(".,") for word in words if word.startswith(tuple(f"{room}/" for room in _ROOMS))}
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    return {path for path in inside if not re.search(r"[<{]|,|NAME", path)} - _WRITTEN | links


def _exists(document: Path, path: str) -> bool:
    """From the checkout or, as a link, from the document; ``*`` stands for any name, and one match is enough."""
    return any(next(folder.glob(path), None) is not None for folder in (ROOT, document.parent))


def test_every_test_that_the_threat_table_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "operate.md").read_text())
    assert len(named) > 35
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []
