"""The vocabulary of a Megatron-LM argument list: as given, or of a tokenizer whose size is known without it."""

from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN, Settings
from launcher.importers.megatron.reader import ArgumentReader, first

GPT2_VOCABULARY = 50257  # Entries of the ``vocab.json`` of GPT-2, which ``GPT2BPETokenizer`` reads.
TIKTOKEN_VOCABULARY = 1 << 17
"""``DEFAULT_TIKTOKEN_MAX_VOCAB`` of ``core/tokenizers/text/libraries/tiktoken_tokenizer.py``."""

_TOKENIZER = ("tokenizer-type", "tokenizer-model", "vocab-file", "merge-file", "vocab-extra-ids")
_SIZED_BY_ARGUMENT = ("Null", "TikTokenizer")
_MULTIPLE = "backend.extra.make-vocab-size-divisible-by"


def vocabulary(reader: ArgumentReader) -> Any:
    """The number of tokens; ``???`` where it is known to the tokenizer alone, so that nothing is guessed."""
    key = "model.vocab_size"
    exact = [reader.count(name, key, _MULTIPLE) for name in ("padded-vocab-size", "pad-vocab-size-to")]
    found = first((*exact, _given(reader, sized=any(value is not None for value in exact))))
    reader.idle("the data hold token ids, and the vocabulary's size is all that the model knows of it", *_TOKENIZER)
    return found if found is not None else _by_tokenizer(reader)


def _given(reader: ArgumentReader, *, sized: bool) -> Any:
    """``--vocab-size``, which ``core/tokenizers/utils/build_tokenizer.py`` reads for some tokenizers alone."""
    given = reader.count("vocab-size", "model.vocab_size")
    kind = reader.arguments["tokenizer-type"].value if "tokenizer-type" in reader else None
    if given is None or sized or kind is None or "tokenizer-type" in reader.parsed.unset:
        return given
    if str(kind).startswith(_SIZED_BY_ARGUMENT):
        return given
    if kind == "GPT2BPETokenizer":
        if given != GPT2_VOCABULARY:
            reader.idle(f"{kind} has a size of its own, {GPT2_VOCABULARY}", "vocab-size")
        return GPT2_VOCABULARY
    reader.note(f"--vocab-size {given} beside {kind}, whose own size decides there: set model.vocab_size if it differs")
    return given


def multiple(reader: ArgumentReader) -> Settings:
    """Return the multiple that pads the vocabulary; a padded size is taken as it is."""
    whole = reader.switches(("no-pad-vocab-size", "disable-pad-vocab-size"), _MULTIPLE)
    name = "make-vocab-size-divisible-by"
    given = reader.count(name, _MULTIPLE)
    padded = any(name in reader for name in ("padded-vocab-size", "pad-vocab-size-to"))
    if whole or padded:
        if given is not None and not whole:
            reader.idle("the padded size is given", name)
        return {_MULTIPLE: 1}
    return {} if given in (None, 128) else {_MULTIPLE: given}


def _by_tokenizer(reader: ArgumentReader) -> Any:
    key = "model.vocab_size"
    kind = reader.word("tokenizer-type", key)
    if kind is None and "merge-file" in reader:
        reader.note("--merge-file without --tokenizer-type: GPT2BPETokenizer, the default of pretrain_gpt.py")
        reader.ledger.say(reader.key("merge-file"), key)
        return GPT2_VOCABULARY
    if kind == "GPT2BPETokenizer":
        return GPT2_VOCABULARY
    if kind == "TikTokenizer":
        return TIKTOKEN_VOCABULARY
    folder = reader.text("tokenizer-model") if kind == "HuggingFaceTokenizer" else None
    if folder is not None and (size := _of_folder(Path(folder))) is not None:
        reader.ledger.say(reader.key("tokenizer-model"), key)
        return size
    if kind is None:
        reader.note("the file names neither a vocabulary nor a tokenizer whose own is known: set model.vocab_size")
    reader.leave("tokenizer-type", "it alone knows the size of the vocabulary: set model.vocab_size")
    return OPEN


def _of_folder(folder: Path) -> int | None:
    try:
        content = files.load_json(folder / "tokenizer.json") if folder.is_dir() else None
    except (OSError, ValueError):
        return None
    return _largest(content) if isinstance(content, dict) else None


def _largest(content: JsonObject) -> int | None:
    model = content.get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    known = list(ids.values()) if isinstance(ids, dict) else list(range(len(ids))) if isinstance(ids, list) else []
    added = content.get("added_tokens")
    more = [item.get("id") for item in added if isinstance(item, dict)] if isinstance(added, list) else []
    numbers = [number for number in (*known, *more) if isinstance(number, int)]
    return max(numbers) + 1 if numbers else None
