"""``state.json`` of a checkpoint: its step, its place in the data, the model; and whether a run may go on from it.

What a step has seen follows from the global batch, the order of samples and the samples themselves. All three are
written down, so that a run that would go on with others is refused, before the queue where the checkpoint can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

SCHEMA = 1
NOT_SIZES = frozenset(("name", "source", "weights", "attention", "dropout", "initializer_range", "trust_remote_code"))
"""Fields of the model that may differ between the run that saved and the run that loads."""

FRESH = "a new run starts from its weights alone: launch resume RUN save.export=safetensors, model.weights=RUN/export"


def of(
    spec: RunSpec, step: int, *, samples: int | None = None, corpus: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Content of ``state.json``.

    Args:
        spec: The run.
        step: The last that is in the checkpoint.
        samples: How many of the stream of samples the steps up to this one have seen; None where the batch was the same
            in all of them.
        corpus: Which samples they are, as the worker tells it.
    """
    return {
        "schema": SCHEMA,
        "step": step,
        "samples": step * spec.global_batch_size if samples is None else samples,
        "spec_hash": spec.hash,
        "global_batch_size": spec.global_batch_size,
        "sequence_length": spec.sequence_length,
        "seed": spec.train.seed,
        "shuffle": spec.data.shuffle,
        "corpus": dict(corpus or {}),
        "backend": spec.backend.name,
        "steps": spec.steps,
        "model": sizes(spec),
    }


def sizes(spec: RunSpec) -> dict[str, Any]:
    """The settings that the tensors of a checkpoint depend on: the model's sizes, the adapter and the optimizer."""
    found = {f"model.{key}": value for key, value in asdict(spec.model).items() if key not in NOT_SIZES}
    if spec.adapter.name != "none":
        found |= {"adapter.rank": spec.adapter.rank, "adapter.targets": list(spec.adapter.targets)}
    return {**found, "adapter.name": spec.adapter.name, "optimizer.name": spec.optimizer.name}


def samples(state: Mapping[str, Any]) -> int:
    """Samples that the steps up to the checkpoint have seen; those of early versions had one batch for all steps."""
    return int(state.get("samples", state["step"] * state.get("global_batch_size", 0)))


def obstacles(spec: RunSpec, state: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Reasons why a run cannot go on from a checkpoint as if nothing had happened, each with the way out.

    Args:
        spec: The run.
        state: The checkpoint's ``state.json``; what it does not say is not compared.
    """
    if (there := state.get("backend", spec.backend.name)) != spec.backend.name:
        rule = f"the checkpoint was written by backend={there}, and each engine reads its own alone; {FRESH}"
        yield ConfigError("backend.name", spec.backend.name, rule, [f"backend={there}"])
        return
    yield from _model(spec, state.get("model", {}))
    yield from _order(spec, state)
    yield from _batch(spec, state)


def _model(spec: RunSpec, there: Mapping[str, Any]) -> Iterator[ConfigError]:
    here = sizes(spec)
    for path in [path for path in here if path in there or path.startswith("adapter.")]:
        if there.get(path) != here[path]:
            was = there.get(path)
            rule = f"the checkpoint holds tensors of {path}={edit.typed(was)}"
            yield ConfigError(path, here[path], rule, [edit.override(path, was)])


def _order(spec: RunSpec, state: Mapping[str, Any]) -> Iterator[ConfigError]:
    here = {
        "train.sequence_length": ("sequence_length", spec.sequence_length),
        "train.seed": ("seed", spec.train.seed),
        "data.shuffle": ("shuffle", spec.data.shuffle),
    }
    for path, (key, value) in here.items():
        if key in state and state[key] != value:
            rule = (
                f"the checkpoint's place in the data is in the order of {path}={edit.typed(state[key])}: with another "
                f"some samples would be read again and others never; {FRESH}"
            )
            yield ConfigError(path, value, rule, [edit.override(path, state[key])])


def _batch(spec: RunSpec, state: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Another batch is another training: it has to be asked for, and the place in the data counted in samples."""
    there, here = state.get("global_batch_size", spec.global_batch_size), spec.global_batch_size
    if here == there:
        return
    follows = "" if spec.train.gradient_accumulation is None else " train.gradient_accumulation=null"
    keeps = [edit.override("train.global_batch_size", there) + follows]
    if spec.train.global_batch_size is None:
        rule = (
            f"the checkpoint is of a run of {there} sequences a step, and without train.global_batch_size this one has "
            f"{here}, as many as its ranks see in a step: the same learning rate would train another model"
        )
        yield ConfigError("train.global_batch_size", None, rule, keeps)


def other_samples(spec: RunSpec, state: Mapping[str, Any], corpus: Mapping[str, Any]) -> str | None:
    """The sentence that says that the corpus is not the one of the checkpoint; None where it is, or none is known.

    Only what both sides know is compared: checkpoints of earlier versions lack the hash of all samples.

    Args:
        spec: The run.
        state: The checkpoint's ``state.json``.
        corpus: Which samples this run has, as ``state.json`` holds it.
    """
    there = state.get("corpus") or {}
    if all(there[key] == corpus[key] for key in there.keys() & corpus.keys()):
        return None
    counts = f"{there.get('samples')} samples there and {corpus.get('samples')} here"
    if there.get("samples") == corpus.get("samples"):
        counts = f"{corpus.get('samples')} samples here too, but others"
    return (
        f"was trained on other data ({counts}): data.path={spec.data.path}, data.tokenizer, train.eval_every and "
        f"data.eval_fraction decide what is trained on, and a resumed run goes on in the same samples; {FRESH}"
    )
