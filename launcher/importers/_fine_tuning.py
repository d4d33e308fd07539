"""Data sets, LoRA and the chat template in files of fine-tuning programs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from launcher.base.frozen import dataclass
from launcher.data.template import shipped
from launcher.importers._reading import KeyReader
from launcher.spec.values import set_names

_AS: Mapping[str, str] = {
    "gemma2": "gemma", "gemma3": "gemma", "gemma_chatml": "chatml", "mistral_v2v3": "mistral", "qwen_25": "qwen",
    "qwen2": "qwen", "qwen3_nothink": "chatml", "phi_3": "phi", "phi_35": "phi", "phi3": "phi", "yi": "chatml",
}  # fmt: skip
"""Names of other programs for the same text."""

_OWN = ("tokenizer_default", "default", "jinja")


def targets(reading: KeyReader, key: str) -> None:
    """Modules that an adapter is put on: all linear ones, or a list (also a line with commas)."""
    value = reading.value(key)
    found = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip())
    names = [str(each) for each in found]
    matched = _matched(value) if isinstance(value, str) and re.search(r"[^\w,.\s-]", value) else None
    if names and names[0] in ("all", "all-linear", "all_linear"):
        reading.ledger.default(key)
    elif matched:
        reading.say(key, {"adapter.targets": matched})
        reading.notes.append(f"{key} is read as the modules that it matches in every block: {', '.join(matched)}")
    elif not names or any(re.search(r"[^\w.-]", name) for name in names):
        reading.ledger.leave(key, "launch names modules alike in every block, and these differ: set adapter.targets")
    else:
        reading.say(key, {"adapter.targets": names})


def parameters(reading: KeyReader, key: str) -> None:
    """Weights that an adapter is added to: those of a layer's experts; without modules no other."""
    value = reading.value(key)
    found = value if isinstance(value, list) else str(value).split()
    names = [str(each).rpartition(".")[2] for each in found]
    if not names:
        reading.ledger.default(key)
    elif not {*names} <= {"gate_up_proj", "up_proj", "down_proj"}:
        reading.ledger.leave(key, "launch adds adapters to parameters of experts only: set adapter.parameters")
    else:
        reading.say(key, {"adapter.parameters": [f"experts.{name}" for name in names]})
        if not (reading.value("lora_target_modules") or reading.value("lora_target_linear")):
            reading.settings["adapter.targets"] = []


_BLOCKS = ("model.layers", "model.language_model.layers", "language_model.model.layers", "model.text_model.layers")
_LINEAR = tuple(
    f"{parent}.{name}_proj"
    for parent, names in (("self_attn", "q k v o qkv q_a q_b kv_b"), ("mlp", "gate up down gate_up"))
    for name in names.split()
)
_OTHERS = re.compile(r"\)[*+{]|vis|image|audio|project|merger|adapter|expert")  # Also what may match for ever.


def _matched(pattern: str) -> list[str] | None:
    """The linear layers of text that a pattern matches whole, as peft does; None where they differ by the block."""
    try:
        matches = None if len(pattern) > 300 or _OTHERS.search(pattern) else re.compile(pattern).fullmatch
    except re.error:
        return None
    found = [
        [name.rpartition(".")[2] for name in _LINEAR if matches and matches(f"{block}.{layer}.{name}")]
        for block in _BLOCKS
        for layer in (0, 1, 2, 3, 16)
    ]
    some = [names for names in found if names]
    return some[0] if some and len(some) % 5 == 0 and all(names == some[0] for names in some) else None


def template(reading: KeyReader, key: str) -> None:
    """A chat template by its name: one that is shipped, or the tokenizer's own."""
    value = str(reading.value(key)).lower()
    known = _AS.get(value, value)
    if known in shipped():
        reading.say(key, {"data.template": known})
    elif value in _OWN or value.startswith("tokenizer_default"):
        reading.ledger.default(key)
    else:
        model = str(reading.choose.get("model", "")).lower()
        family = re.split(r"[\d_.-]", value)[0]
        if family and family in model and not re.search(r"base|pretrain", model):
            reading.ledger.leave(
                key, "the tokenizer's own template is used, which is that of its chat models", matters=False
            )
        else:
            reading.ledger.leave(key, f"no template {value} here: set data.template to a Jinja file")


def template_values(reading: KeyReader, key: str) -> None:
    """Say one of the values that a chat template is given beside the row."""
    name, said = key.partition(".")[2], dict(reading.settings.get("data.template_values") or {})
    if not name or "." in name or isinstance(reading.value(key), list):
        reading.ledger.leave(key, "a template is told text, numbers and switches by their names: set data.template")
    else:
        reading.say(key, {"data.template_values": said | {name: reading.value(key)}})


def special_tokens(reading: KeyReader, key: str) -> None:
    """Tokens by their roles, and those that are added to the tokenizer: a list, or a line with commas."""
    value, role = reading.value(key), key.rpartition(".")[2]
    said = dict(reading.settings.get("data.special_tokens") or {})
    if role in ("bos_token", "eos_token"):
        said[role] = str(value)
    elif isinstance(value, str | list):
        found = value if isinstance(value, list) else value.split(",")
        said.setdefault("additional_special_tokens", [])
        said["additional_special_tokens"] = [*said["additional_special_tokens"], *(str(each).strip() for each in found)]
    else:
        reading.ledger.leave(key, "launch names tokens by their text: set data.special_tokens")
        return
    reading.say(key, {"data.special_tokens": said})


def own_template(reading: KeyReader, key: str) -> None:
    """A chat template as Jinja text, in one line: its blocks take their ends of line with them (``trim_blocks``)."""
    text = re.sub(r"^[ \t]+(?=\{%)", "", str(reading.value(key)).strip("\n"), flags=re.MULTILINE)
    if "{%" in text:
        reading.say(key, {"data.template": text.replace("%}\n", "%}").replace("\n", "{{ '\\n' }}")})
    else:
        template(reading, key)


def written(whole: str, short: str, system: str, *, begins: str = "{{ bos_token or '' }}") -> str | None:
    """A Jinja template of words around ``{instruction}``, ``{input}`` and ``{system}``, ``short`` without an input.

    None where the words hold Jinja themselves.
    """
    parts = [system, whole, short]
    for column, said in (
        ("{instruction}", "{{ message.instruction or message.content }}"),
        ("{input}", "{{ message.input }}"),
        ("{system}", "{{ message.content }}"),  # noqa: RUF027
    ):
        parts = [part.replace(column, said) for part in parts]
    if any("{%" in part for part in parts):
        return None
    lines = (part.replace("\n", "{{ '\\n' }}") for part in parts)  # A setting is one line.
    system, whole, short = (f"{{{{ '' }}}}{part}{{{{ '' }}}}" for part in lines)  # So that no tag trims them.
    return (
        begins + "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}"
        "{{ message.content + (eos_token or '') }}{% endgeneration %}{% elif message.role == 'system' %}"
        + system + "{% elif message.input %}" + whole + "{% else %}" + short + "{% endif %}{% endfor %}"
    )  # fmt: skip


def turns(begins: str, system: str, user: str, assistant: str, default: str = "") -> str:
    """A Jinja template of turns around ``{}``, with ``default`` said by the system where a row has no such turn.

    ``{bos}`` and ``{eos}`` are the tokenizer's tokens; ``{end}`` is the latter behind the last turn alone.
    """

    def text(words: str, content: str = "message.content") -> str:
        for name, said in (
            ("{}", content),
            ("{bos}", "bos_token or ''"),
            ("{eos}", "eos_token or ''"),
            ("{end}", "eos_token or '' if loop.last else ''"),
        ):
            words = words.replace(name, f"{{{{ {said} }}}}")
        return f"{{{{ '' }}}}{words}{{{{ '' }}}}".replace("\n", "{{ '\\n' }}")

    first = text(system.replace("{}", default), "") if default else ""
    return (
        text(begins)
        + (f"{{% if messages[0].role != 'system' %}}{first}{{% endif %}}" if first else "")
        + "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}"
        + text(assistant) + "{% endgeneration %}{% elif message.role == 'system' %}" + text(system)
        + "{% else %}" + text(user) + "{% endif %}{% endfor %}"
    )  # fmt: skip


def loss(reading: KeyReader, key: str) -> None:
    """Say the loss of dpo, kto or grpo, a word or a list of one; refuse several."""
    value = reading.value(key)
    word = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(word, str) and reading.choose.get("task") in ("dpo", "kto", "grpo"):
        reading.say(key, {"task.loss": word})
    else:
        reading.ledger.leave(key, "launch trains one loss: set task.loss")


def say_pure(reading: KeyReader, *keys: str) -> None:
    """Say that weights, gradients and optimizer states are in bf16, from end to end."""
    names = ("parameters", "gradients", "accumulate", "optimizer_states", "reduce")
    reading.say_together({f"precision.{name}": "bf16" for name in names}, *keys)


# Data sets.

_LOADERS = ("json", "parquet", "csv", "text", "arrow")  # Names by which ``datasets`` takes local files.


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One data set of a file."""

    keys: tuple[str, ...]  # The keys of the file that say it.
    source: str  # chat, text or huggingface.
    said: Mapping[str, Any]  # Its settings by their names in ``data``: path, config, split, revision, column, ...


def source_of(path: object, *, chat: bool) -> str:
    """The source of a data set by its path: files, or a name on the Hub."""
    if chat:
        return "chat"
    return "text" if is_local(path) else "huggingface"


def is_local(path: object) -> bool:
    """True for a path on this machine; OWNER/NAME is one on the Hub."""
    name = str(path)
    parts = name.split("/")
    return name.startswith((".", "/", "~")) or len(parts) != 2 or ("." in parts[1][-7:] and parts[1].endswith(_ENDINGS))


_ENDINGS = (".json", ".jsonl", ".csv", ".parquet", ".txt", ".gz", ".zst", ".arrow")


def path_of(path: Any, files: Any) -> Any:
    """A data set's path, or that of its files where it names a loader (``path: json``) or their folder."""
    if str(path) in _LOADERS or path is None:
        return files[0] if isinstance(files, list) and len(files) == 1 else files
    if files and str(path).startswith((".", "/", "~")):
        found = [f"{str(path).rstrip('/')}/{each}" for each in (files if isinstance(files, list) else [files])]
        return found[0] if len(found) == 1 else found
    return path


def say(reading: KeyReader, sets: Sequence[DataSet]) -> None:
    """Say one data set by ``data``, several by ``data.mix``."""
    if not sets:
        return
    chosen = sets[0].source
    reading.choose["data"] = chosen
    if len(sets) == 1:
        settings = {f"data.{name}": value for name, value in differing(sets[0])}
        reading.settings |= settings
        for key in sets[0].keys:
            reading.ledger.say(key, "data", *settings)
        return
    mix = []
    for each in sets:
        part = dict(differing(each))
        if any(one.said.get("weight") is not None for one in sets):
            part.setdefault("weight", 1.0)
        mix.append(part | ({"source": each.source} if each.source != chosen else {}))
        for key in each.keys:
            reading.ledger.say(key, "data", "data.mix", "data.path")
    reading.settings |= {"data.path": None, "data.mix": mix}


def say_evaluated(reading: KeyReader, sets: Sequence[DataSet]) -> None:
    """Say one data set of evaluations by ``data.eval_path`` and the like, several by ``data.eval_sets``."""
    found = [{name: value for name, value in each.said.items() if value is not None} for each in sets]
    settings: dict[str, Any] = {
        f"data.eval_{name}": one[name] for one in found[:1] for name in _EVALUATED if name in one
    }
    if len(sets) > 1:
        names = set_names(_ENDING.sub("", PurePath(one["path"]).name) for one in found)
        settings = {"data.eval_sets": [{"name": name, **one} for name, one in zip(names, found, strict=True)]}
    for each in sets:
        reading.say_together(settings, *each.keys)


_EVALUATED = ("path", "split", "config")
_ENDING = re.compile(rf"({'|'.join(map(re.escape, _ENDINGS))})+$")


def differing(data_set: DataSet) -> Iterator[tuple[str, Any]]:
    """Settings of a data set that say something; ``train`` is the split without a word."""
    return ((name, value) for name, value in data_set.said.items() if value is not None and (name, value) != _TRAIN)


_TRAIN = ("split", "train")


def held_out(reading: KeyReader, key: str) -> None:
    """Say the share of samples that is held out for evaluation; refuse a number of samples, which has no setting."""
    found = reading.number(key) or 0
    if found < 1:
        reading.say(key, {"data.eval_fraction": found})
    else:
        reading.ledger.leave(key, "launch holds out a share, not a number of samples: set data.eval_fraction")
