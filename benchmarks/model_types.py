"""Parameter counts of launch and of the class, for every decoder-only model type of the installed transformers.

Each type's default configuration, and the same with every switch turned and with heads of another size, is read as a
``config.json`` and counted; the class itself is built on torch's meta device. ``--json`` prints the rows.

    python -m benchmarks.model_types [--switches] [--json] [TYPE ...]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from launcher.base.errors import LauncherError
from launcher.config.hub import model_types, reading
from launcher.estimate import families
from launcher.estimate.rank.counts import parameter_counts
from launcher.spec.parse import parse, to_dict
from tests.support.helpers import make_spec

_HEAD = 48  # No class has heads of this size by default.


def types() -> list[str]:
    """The model types with a causal LM class, without encoders and non-text models."""
    table = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return sorted(kind for kind in table if model_types.is_text_decoder({"model_type": kind}))


def documents(kind: str, *, switches: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The default configuration of a type, and with ``switches`` its variants, each with the key that differs."""
    made = import_module("transformers").CONFIG_MAPPING[kind]().to_dict()
    plain = {key: value for key, value in made.items() if not key.endswith("_token_id")}
    yield "", plain
    if switches:
        yield "head_dim", {**plain, "head_dim": _HEAD}
        for key in (key for key, value in plain.items() if isinstance(value, bool) and not _of_a_call(key)):
            yield key, {**plain, key: not plain[key]}


def _of_a_call(key: str) -> bool:
    return key.startswith(("output_", "return_", "use_cache", "is_", "add_cross", "chunk_", "tie_encoder"))


def theirs(kind: str, document: dict[str, Any]) -> int:
    """Parameters of the class, built without memory."""
    torch, transformers = import_module("torch"), import_module("transformers")
    config = transformers.CONFIG_MAPPING[kind](**{key: value for key, value in document.items() if key != "model_type"})
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(config)
    return sum(each.numel() for each in made.parameters())


def ours(document: dict[str, Any]) -> int | str:
    """Parameters that the launcher counts, or the reason of its refusal."""
    try:
        found = reading.read(json.dumps(document), "config.json")
        if found.errors:
            return found.errors[0].rule
        run = to_dict(make_spec("model=tiny", "precision=fp32"))
        group = run["model"]
        assert isinstance(group, dict)
        run["model"] = {**group, "hidden_act": "silu", "rope_theta": 1e4, **found.model}
        spec = parse(run)
        errors = list(families.check(spec))
        return errors[0].rule if errors else parameter_counts(spec, families.of(spec.model))[0]
    except LauncherError as error:
        return str(error)


def rows(kinds: list[str], *, switches: bool) -> Iterator[dict[str, Any]]:
    """One row a configuration: ``equal``, ``unequal``, ``refused``, or ``not built`` where the class itself fails."""
    for kind in kinds:
        try:
            variants = list(documents(kind, switches=switches))
        except Exception as error:  # A class's own defaults may not fit its checks.
            yield {"type": kind, "changed": "", "ours": "", "outcome": "not built", "why": str(error)[:80]}
            continue
        for changed, document in variants:
            row: dict[str, Any] = {"type": kind, "changed": changed, "ours": ours(document)}
            try:
                row["theirs"] = theirs(kind, document)
            except Exception as error:  # A class may not be built with a switch turned: that is no fault of a count.
                yield {**row, "outcome": "not built", "why": str(error)[:80]}
                continue
            same = row["ours"] == row["theirs"]
            yield {**row, "outcome": "equal" if same else "refused" if isinstance(row["ours"], str) else "unequal"}


def main() -> None:
    """Print each row and the number of each outcome."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_types", description=__doc__)
    parser.add_argument("types", nargs="*", help="model types (default: all)")
    parser.add_argument("--switches", action="store_true", help="also turn every switch")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    found = []
    for row in rows(options.types or types(), switches=options.switches):
        found.append(row)
        if not options.json:
            print(f"{row['outcome']:10} {row['type']:24} {row['changed']:24} {row['ours']} {row.get('theirs', '')}")
    print(json.dumps(found, indent=1) if options.json else Counter(row["outcome"] for row in found))


if __name__ == "__main__":
    main()
