"""The text of ``launch --help``: verbs, groups with their options, and where to read on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from launcher.config.catalog import Catalog


def text(verbs: Mapping[str, str]) -> str:
    """The whole overview, at most 80 columns wide."""
    lines = [
        "launch GROUP=OPTION... GROUP.KEY=VALUE...   check, record and start a run",
        "launch VERB ...                             a verb; --help on each",
        "",
        "  launch model=tiny parallel=fsdp",
        "  launch check model=7b parallel=fsdp hardware=h100_80g cluster.gpus_per_node=8",
        "  launch plan model=7b hardware=h100_80g         the fastest layouts that fit",
        "  launch check model=./folder   a Hugging Face folder; model=org/name: the Hub's",
        "  launch model=7b hardware=h100_80g plan=best    the run with the first of them",
        "  launch recipe=NAME train.micro_batch_size=2",
        "  launch -m model=tiny optimizer.lr=1e-4,3e-4   a sweep",
        "  launch script=train.py -- --your --arguments",
        "",
        "Verbs",
        *(f"  {verb:{max(map(len, verbs))}} {meaning}" for verb, meaning in verbs.items()),
        "",
        "Groups and their options",
    ]
    for group, options in Catalog(folder=Path.cwd()).groups.items():
        listed = textwrap.wrap(" ".join(options), width=64) or ["(none)"]
        lines += [f"  {group:13} {listed[0]}", *(f"  {'':13} {line}" for line in listed[1:])]
    lines += [
        "",
        "Keys inside a group: launch show GROUP, for example `launch show parallel`.",
        "Exit status: 0 done, 2 wrong configuration, 3 does not fit, 4 submission or run",
        "folder failed, 5 the job failed, 130 interrupted, 1 a fault of launch itself.",
    ]
    return "\n".join(lines)
