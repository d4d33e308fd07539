"""Evaluate a recorded run's exported model on its tasks: ``python -m launcher.worker.evaluate``.

lm-evaluation-harness loads the export, or the adapter with the weights that it was trained on, once the ranks have
released the node's devices; on several devices it spreads the layers (``parallelize``). The scores, or the error, go to
``evaluation.json`` in the run directory.
"""

import argparse
import re
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launcher.base.files import load_json, read_text, write_atomically
from launcher.data.tokenizer import of_transformers
from launcher.spec import RunSpec
from launcher.spec.parse import parse


def main() -> int:
    """Evaluate the tasks of ``--run DIR`` for ``--attempt NAME``; return 0, or 1 with the error recorded."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--attempt", required=True, metavar="NAME", help="the attempt of the job")
    options = parser.parse_args()
    spec = parse(load_json(options.run / "spec.json"))
    try:
        step = load_json(options.run / "logs" / "outcome.json")["step"]
        found = {"lm_eval": version("lm-eval"), "step": step, "tasks": _scores(spec, options.run / "export")}
    except Exception as error:  # From the library, a task's own code, or the Hub, which holds its questions.
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    write_atomically(options.run / "evaluation.json", {"schema": 1, "attempt": options.attempt, **found})
    return int("error" in found)


def _scores(spec: RunSpec, export: Path) -> dict[str, dict[str, Any]]:
    """The harness's results by task: metrics with their filters, standard errors, and numbers of questions."""
    import lm_eval  # Imported late: it takes seconds, and imports torch.
    from lm_eval.tasks import TaskManager

    weights, adapter = (export, None) if spec.adapter.name == "none" else (spec.model.weights, export)
    on_gpu = spec.hardware.device == "cuda"
    arguments = {
        "pretrained": str(weights),
        "peft": None if adapter is None else str(adapter),
        "tokenizer": of_transformers(spec.data.tokenizer, spec.data.roles),
        "dtype": "bfloat16" if spec.precision.compute not in ("fp16", "fp32") else f"float{spec.precision.compute[2:]}",
        "parallelize": on_gpu and spec.cluster.gpus_per_node > 1,
    }
    found: Any = lm_eval.simple_evaluate(
        "hf",
        model_args=arguments,
        tasks=list(spec.eval.tasks),
        task_manager=TaskManager(include_defaults=not all(map(_stands_alone, spec.eval.tasks)), metadata=arguments),
        num_fewshot=spec.eval.num_fewshot,
        limit=spec.eval.limit,
        batch_size=spec.micro_batch_size,
        device="cuda" if on_gpu else "cpu",
        log_samples=False,
        random_seed=spec.train.seed,
        numpy_random_seed=spec.train.seed,
        torch_random_seed=spec.train.seed,
        fewshot_random_seed=spec.train.seed,
    )
    results: dict[str, dict[str, Any]] = found["results"]
    return {name: {key: each for key, each in scores.items() if key != "alias"} for name, scores in results.items()}


def _stands_alone(task: str) -> bool:
    """True for a file of one task that refers to no other: the harness takes 12 s to index its own tasks."""
    text = read_text(Path(task)) if task.endswith((".yaml", ".yml")) else ""
    return bool(re.search(r"^task: *\w", text, re.M)) and not re.search(r"^(group|include):", text, re.M)


if __name__ == "__main__":
    sys.exit(main())
