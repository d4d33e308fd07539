"""Batches of a ``ds_config.json``: any two of three give the third (DeepSpeed 0.19.8, ``runtime/config.py``)."""

from __future__ import annotations

from launcher.importers.deepspeed.reading import Reading

_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_SETTINGS = {
    _TOTAL: "train.global_batch_size",
    _MICRO: "train.micro_batch_size",
    _STEPS: "train.gradient_accumulation",
}


def read(reading: Reading) -> None:
    """Say the batch as ``_set_batch_related_parameters`` derives it.

    What is not given follows here from the ranks too. A global batch by itself is one micro-batch on every rank, and so
    is a micro-batch by itself.
    """
    found = {key: reading.count(key, least=1) for key in _SETTINGS}
    for key, number in found.items():
        if number is not None:
            reading.say(key, {_SETTINGS[key]: number})
    if found[_TOTAL] is None or found[_MICRO] is not None or _MICRO in _open(reading):
        return
    steps = found[_STEPS] or (1 if _STEPS not in _open(reading) else None)
    if steps is not None:
        follows = {_SETTINGS[_TOTAL]: found[_TOTAL], _SETTINGS[_MICRO]: None, _SETTINGS[_STEPS]: steps}
        reading.say(_TOTAL, follows)


def _open(reading: Reading) -> set[str]:
    """Keys that the file leaves to the program that reads it."""
    return {key for key in _SETTINGS if not reading.absent(key) and reading.value(key) is None}
