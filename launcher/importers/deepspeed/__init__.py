"""DeepSpeed's ``ds_config.json``: keys and defaults of DeepSpeed 0.19.8 (``runtime/config.py``), and older spellings.

Where DeepSpeed repairs or ignores a setting, so does this, and the key is left out with that reason. What a block does
not say is what its class in DeepSpeed has by default. ``"auto"`` is filled in by the program that reads the file, so
that its value is not there, and the setting of the same meaning decides. ``gradient_clipping`` is 1.0 where it is
absent, as it is here.
"""

from launcher.config.ledger import OPEN, leaves
from launcher.importers import Imported, Ledger
from launcher.importers.deepspeed import optimizer, others, zero
from launcher.importers.deepspeed.reading import AUTO, Reading, content_of

_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_SETTINGS = {_TOTAL: "train.global_batch_size", _MICRO: "train.micro_batch_size", _STEPS: "train.gradient_accumulation"}


def read(text: str, path: str) -> Imported:
    """Read a ``ds_config.json``; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = content_of(text, path)
    reading = Reading(path=path, ledger=Ledger(leaves(content)))
    if content and others.HEADS.isdisjoint(content):
        first = next(iter(content))
        reading.wrong(next(iter(reading.ledger.values)), f"DeepSpeed reads no key of this file, the first is {first}")
    _open(reading)
    stage = zero.read(reading)
    others.precision(reading)
    if stage == 0 and reading.choose.get("precision") == "fp16":
        rule = "DeepSpeed 0.19.8 divides gradients by a loss scale that it never multiplied in"
        reading.notes.append(f"fp16 without ZeRO is refused here, since {rule}: add zero=1 or precision=bf16")
    _batch(reading)
    optimizer.read(reading)
    optimizer.read_scheduler(reading)
    others.tracking(reading)
    others.parallel(reading)
    others.engine(reading)
    others.features(reading)
    unread = (key for key in content if key not in others.HEADS)
    reading.idle("DeepSpeed reads no such key; a program of its own may", *unread)
    return reading.ledger.imported(
        summary=f"DeepSpeed ZeRO-{stage}",
        source="a ds_config.json",
        choose=reading.choose,
        settings=reading.settings,
        not_understood=reading.notes,
        errors=reading.errors,
    )


def _open(reading: Reading) -> None:
    sections = (zero.settings(), optimizer.settings(), optimizer.scheduler_settings(), others.settings())
    deciding = {**_SETTINGS, **{key: setting for section in sections for key, setting in section.items()}}
    for key, value in reading.ledger.values.items():
        setting = deciding.get(key)
        if value == AUTO:
            ends = f"; {setting} decides here" if setting else ""
            reading.idle(f"the file leaves it to the program that reads it{ends}", key)
        elif value == OPEN:
            reading.ledger.leave(key, "the file leaves it open" + (f": set {setting}" if setting else ""))
        elif value in (None, {}):
            reading.ledger.default(key)


def _batch(reading: Reading) -> None:
    """Say the batch as ``_set_batch_related_parameters`` derives it."""
    found = {key: reading.count(key, least=1) for key in _SETTINGS}
    for key, number in found.items():
        if number is not None:
            reading.say(key, {_SETTINGS[key]: number})
    if found[_TOTAL] is None or found[_MICRO] is not None or _MICRO in _open_batch(reading):
        return
    steps = found[_STEPS] or (1 if _STEPS not in _open_batch(reading) else None)
    if steps is not None:
        reading.say(_TOTAL, {_SETTINGS[_TOTAL]: found[_TOTAL], _SETTINGS[_MICRO]: None, _SETTINGS[_STEPS]: steps})


def _open_batch(reading: Reading) -> set[str]:
    return {key for key in _SETTINGS if not reading.absent(key) and reading.value(key) is None}
