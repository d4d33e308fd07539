"""Arguments of the installed Megatron-LM's parser, from a process that has imported it anyway."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def write(path: str) -> None:
    """Write every flag with a value of its type, or true for a switch; for one rank.

    Args:
        path: The JSON file.
    """
    from megatron.training import arguments  # Imported here, as in launcher.worker: only ranks need it.

    if os.environ.get("RANK", "0") != "0":
        return
    parser = argparse.ArgumentParser(add_help=False)
    arguments.add_megatron_arguments(parser)
    found: dict[str, str | int | bool] = {}
    for action in parser._actions:
        switch = action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction)
        choices = [str(getattr(choice, "name", choice)) for choice in action.choices or ()]
        value = True if switch else choices[0] if choices else 1 if action.type in (int, float) else "x"
        spellings = {flag.replace("_", "-"): flag for flag in action.option_strings if flag.startswith("--")}
        found |= dict.fromkeys(spellings.values(), value)
    Path(path).write_text(json.dumps(found))
