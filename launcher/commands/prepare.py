"""Tokenize a run's data ahead of the run, and cache the token ids for every run that reads the same data.

Text and messages are tokenized once per path, size and time of the files and content of the tokenizer; `run` does it
before the ranks start if it has not been done. The cache is in the user's cache folder, with cluster=slurm in
cluster.shared_folder, or in the folder that LAUNCH_CACHE names, if it is set.
"""

import argparse
import time
from typing import Any

from launcher.actions import run_data
from launcher.actions.requests import JudgeRequest, compose_run, own_measurements
from launcher.actions.trust_gate import require_trust
from launcher.base.terminal import say
from launcher.base.units import gib
from launcher.commands._options import add_shared, print_json, request_from
from launcher.data import token_folder
from launcher.spec import RunSpec


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "overrides", "--json", "--trust")
    parser.add_argument("--clear", action="store_true", help="remove all cached token ids, and make none")


def run(options: argparse.Namespace) -> int:
    """Make or find the token ids, or remove all cached ones; print what there is and where."""
    line = request_from(JudgeRequest, options).command_line()
    require_trust(line, trusted=options.trust)
    spec = compose_run(line, own_measurements(wanted=True)).require()
    document = _cleared(spec) if options.clear else _made(spec, quiet=options.json)
    if options.json:
        print_json({"schema": 1, "prepare": document})
    return 0


def _cleared(spec: RunSpec) -> dict[str, Any]:
    cleared = token_folder.clear(run_data.token_root(spec))
    removed = cleared.removed
    say(f"launch: removed {removed.folders} folders of token ids, {gib(removed.bytes)}, from {removed.path}")
    if cleared.busy:
        say(f"launch: kept {cleared.busy} that another process is writing: run `launch prepare --clear` again later")
    kept = token_folder.cache_use(removed.path).as_dict()
    return {"made": False, "folder": None, "busy": cleared.busy, "cache": kept}


def _made(spec: RunSpec, *, quiet: bool) -> dict[str, Any]:
    if not token_folder.is_tokenised(spec):
        what = "the script reads its own data" if spec.script else f"data={spec.data.source} has no text"
        say(f"launch: nothing to tokenize: {what}")
        return {"made": False, "folder": None, "busy": 0, "cache": None}
    began = time.monotonic()
    found, made = run_data.make_token_ids(spec, quiet=quiet)
    seconds = time.monotonic() - began
    kept = token_folder.cache_use(found.path.parent)
    if not quiet:
        print(found.text)
        if found.bad_rows.count:
            say(f"launch: {found.bad_rows.sentences}")
        speed = f", {found.text_bytes / seconds / 1e6:.1f} MB of text per second" if found.text_bytes else ""
        say(f"launch: made in {seconds:.1f} s{speed}" if made else "launch: already cached, nothing to do")
        say(f"launch: {kept.path} holds {kept.folders} such folders, {gib(kept.bytes)}; --clear removes them")
    counts = {name: getattr(found, name) for name in ("dtype", "tokens", "documents", "text_bytes", "left_out")}
    skipped = {"bad_rows": found.bad_rows.as_dict()} if found.bad_rows.skips else {}
    facts = {"path": str(found.path), **counts, **skipped, "bytes": found.bytes, "seconds": seconds}
    return {"made": made, "folder": facts, "busy": 0, "cache": kept.as_dict()}
