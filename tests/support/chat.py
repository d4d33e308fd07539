"""Conversations, and a small tokenizer with a chat template, in the form of Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.support.helpers import ROOT

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML in the form that tokenizers ship, without generation blocks."""

TALK = ROOT / "tests" / "support" / "talk.jsonl"
"""Conversations whose answers differ widely in length, some truncated away, so that a mean of means is detected."""

TRAINED = (
    "data=chat",
    f"data.path={TALK}",
    "data.eval_fraction=0.25",
    "train.sequence_length=64",
    "train.eval_every=5",
    "train.eval_steps=1",
)
"""Overrides of a run on these conversations."""

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|end|>")


def turns(*contents: str, system: str | None = None) -> dict[str, list[dict[str, str]]]:
    """A row of messages, alternating between user and assistant."""
    said = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(contents)]
    return {"messages": [*([{"role": "system", "content": system}] if system else []), *said]}


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tokenizer(
    folder: Path, template: str | None = CHATML, texts: Sequence[str] = ("hello world, how are you?",)
) -> Path:
    """Write a byte-level BPE tokenizer with special tokens, trained on some texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
