"""``python -m launcher.worker.observe < config.json``: the layers of a ``transformers`` model and what they save."""

import itertools
import json
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject


def observe(content: Mapping[str, Any]) -> JsonObject:
    """The parameters by place, each layer's kind, and the bytes that it saves per token, or ``why`` not."""
    import torch
    import transformers

    from launcher.worker.observe import passes, structure

    config = structure.configuration(content)
    found = structure.structure(config)
    network = found.path.partition(".")[0]
    made: JsonObject = {
        "class": type(config).__name__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "parameters": sum(each.numel() for each in found.model.parameters()),
        "sizes": {**structure.sizes(config), "num_hidden_layers": len(found.layers)},
        "reads": structure.reads(found.model),
        "layers": list(found.layers),
        **structure.weights(found),
        "logits": structure.logits(structure.structure(config).model, network),
    }
    if found.why:
        return {**made, "why": found.why}
    for attention, whole in itertools.product(structure.attentions(config), (False, True)):
        try:
            return {**made, "attention": attention, "passes": passes.passes(found, attention, whole=whole)}
        except Exception as error:  # Any transformers class's code runs here, on tensors without values.
            made.setdefault("why", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200])
    return made


def main() -> int:
    """Read a configuration from standard input; write the structure, or an error."""
    warnings.simplefilter("ignore")
    try:
        status, content = 0, observe(json.load(sys.stdin))
    except LauncherError as error:
        status, content = 2, {"error": str(error)}
    except Exception as error:  # A class may refuse a configuration with its own exceptions.
        status, content = 2, {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]}
    sys.stdout.write(json.dumps(content) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
