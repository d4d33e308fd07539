"""Text to token ids: bytes, or a Hugging Face tokenizer from a local folder.

Planning uses :func:`quick_tokenizer`, which encodes the same and reads a ``tokenizer.json`` with only the package
tokenizers, since importing ``transformers`` takes seconds.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from launcher.base import files, package
from launcher.data import hub
from launcher.data.unusable import PackageMissing, Unusable

type Pieces = tuple[Sequence[int], Sequence[tuple[int, int]]]
"""Ids, and for each the start and end of the characters that it represents."""

type Roles = tuple[tuple[str, str], ...]
"""Special tokens in addition to those of the tokenizer's folder (``DataSpec.roles``)."""


class Tokenizer(Protocol):
    """Turns documents into ids below ``size``."""

    @property
    def size(self) -> int:
        """The largest id plus one; there are fewer tokens if ids are unused."""

    @property
    def end(self) -> int | None:
        """The token that ends a document; None if the tokenizer has none."""

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The ids of many texts at once, without end tokens, on all cores if the tokenizer can."""

    @property
    def special(self) -> frozenset[int]:
        """The ids of special tokens, such as the end of a turn."""

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """The ids of texts that already contain all their special tokens, and the characters that each represents."""


class ByteTokenizer:
    """A tokenizer with one id for each byte value of UTF-8."""

    size = 256
    end = None
    special: frozenset[int] = frozenset()

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The bytes of each text."""
        return [text.encode() for text in texts]

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """The bytes, each with its character's position."""
        places = ([(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode()] for text in texts)
        return list(zip(self.encode_all(texts), places, strict=True))


class FolderTokenizer:
    """A tokenizer that ``transformers`` loads from a folder or the Hub's cache, without downloads or remote code."""

    def __init__(self, path: str, roles: Roles) -> None:
        from transformers import AutoTokenizer

        folder = require_folder(path)
        try:
            self._words = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            rule = f"it cannot be read as a tokenizer: {type(error).__name__}: {error}"
            raise Unusable("data.tokenizer", path, rule, ["data.tokenizer=bytes"]) from error
        define_special_tokens(self._words, roles)
        if self._words.is_fast:  # A tokenizer.json may have been saved with both.
            self._words.backend_tokenizer.no_truncation()
            self._words.backend_tokenizer.no_padding()
        self.size: int = 1 + max(self._words.get_vocab().values(), default=-1)
        self.end: int | None = self._words.eos_token_id
        self.special = frozenset(number for number, token in self._words.added_tokens_decoder.items() if token.special)

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The ids; a fast tokenizer uses all cores unless ``TOKENIZERS_PARALLELISM=false``."""
        if self._words.is_fast:
            found = self._words.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in found]
        return [self._words.encode(text, add_special_tokens=False) for text in texts]

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """Ids and character positions, without added tokens; Unusable if positions are unknown."""
        if not self._words.is_fast:
            rule = (
                "it has no tokenizer.json, without which a token's position in a conversation is unknown: "
                "save it as a fast tokenizer"
            )
            raise Unusable("data.tokenizer", self._words.name_or_path, rule, ["data.tokenizer=bytes"])
        found = self._words.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in found]


class FastTokenizer:
    """The ``tokenizer.json`` of a folder, read by the package tokenizers."""

    def __init__(self, folder: Path, roles: Roles) -> None:
        from tokenizers import Tokenizer

        self._words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._words.no_truncation()  # It may have been saved with both.
        self._words.no_padding()
        self._words.add_special_tokens([text for _, text in roles])
        self.size: int = 1 + max(self._words.get_vocab(with_added_tokens=True).values(), default=-1)
        self.end: int | None = self._words.token_to_id(dict(roles).get("eos_token") or _end_token(folder) or "")
        self.special = frozenset(id_ for id_, token in self._words.get_added_tokens_decoder().items() if token.special)

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The ids of each text, one text at a time, since its threads would not survive a fork of this process."""
        return [ids for ids, _ in self.pieces(texts)]

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """Ids, and the characters that each represents."""
        found = (self._words.encode(text, add_special_tokens=False) for text in texts)
        return [(encoding.ids, encoding.offsets) for encoding in found]


def _end_token(folder: Path) -> str | None:
    try:
        named = files.load_json(folder / "tokenizer_config.json").get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    found = named.get("content") if isinstance(named, dict) else named
    return found if isinstance(found, str) else None


def define_special_tokens(words: Any, roles: Roles) -> None:
    """Add special tokens to a ``transformers`` tokenizer; a new one gets the next id."""
    for role, text in roles:
        if role.endswith("_token"):
            words.add_special_tokens({role: text})
        else:
            words.add_tokens([text], special_tokens=True)


def tokenizer(name: str, roles: Roles = ()) -> Tokenizer:
    """The tokenizer that ``data.tokenizer`` names, with its ``data.special_tokens``."""
    return ByteTokenizer() if name == "bytes" else FolderTokenizer(name, roles)


def quick_tokenizer(name: str, roles: Roles = ()) -> Tokenizer:
    """The tokenizer that ``data.tokenizer`` names, without the packages for training if possible."""
    if name == "bytes":
        return ByteTokenizer()
    folder = require_folder(name)
    quick = folder / "tokenizer.json"
    changed = quick.stat().st_mtime_ns if quick.is_file() else None
    try:
        return _read(name if Path(name).is_dir() else str(folder), changed, roles)
    except ImportError as error:
        rule = f"needs {error.name}, not installed for this Python"
        raise PackageMissing("data.tokenizer", name, rule, [package.install(package.TRAINING)]) from None
    except Unusable:
        raise
    except Exception as error:  # The package tokenizers has no exception classes of its own.
        rule = f"it cannot be read as a tokenizer: {error}"
        raise Unusable("data.tokenizer", name, rule, ["data.tokenizer=bytes"]) from None


@lru_cache(maxsize=4)  # Reading one of 128,000 tokens takes half a second.
def _read(name: str, changed_ns: int | None, roles: Roles) -> Tokenizer:
    return tokenizer(name, roles) if changed_ns is None else FastTokenizer(Path(name), roles)


class TokenCount(NamedTuple):
    """Number of tokens of some texts, and their largest id; -1 if there is none."""

    tokens: int
    largest: int


def count_tokens(words: Tokenizer, texts: Sequence[str], *, ends: int) -> TokenCount:
    """Count the tokens of texts, of which ``ends`` end a document."""
    found = words.encode_all(texts)
    end = words.end if ends else None
    largest = max((_largest(ids) for ids in found if len(ids)), default=-1)
    return TokenCount(sum(map(len, found)) + (0 if end is None else ends), max(largest, -1 if end is None else end))


def _largest(ids: Sequence[int]) -> int:
    if not isinstance(ids, bytes):
        return max(ids)
    return next(value for value in range(255, -1, -1) if value in ids)  # ``max`` takes longer than all the rest.


def fingerprint(name: str) -> str:
    """A hash of the files of the tokenizer that ``data.tokenizer`` names, independent of their location."""
    if name == "bytes":
        return name
    content = hashlib.sha256()
    kinds = (".json", ".txt", ".model", ".jinja", ".tiktoken")
    for path in sorted(path for path in require_folder(name).glob("*") if path.suffix in kinds and path.is_file()):
        content.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        content.update(files.read_bytes(path, files.MOST_OF_A_LOG))
    return content.hexdigest()


def require_folder(name: str) -> Path:
    """The folder of a tokenizer, local or in the Hub's cache; NotHere if it is in neither."""
    found = hub.tokenizer_folder(name)
    if found is None or not found.is_dir():
        raise hub.missing_tokenizer(name)
    return found


_END = "\0"  # A byte that text never contains marks the end.


def of_transformers(name: str, roles: Roles) -> Any:
    """The tokenizer as ``transformers`` loads it; for ``bytes`` one with an id for each byte value of UTF-8."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if name != "bytes":
        made = AutoTokenizer.from_pretrained(hub.tokenizer_folder(name) or name, trust_remote_code=False)
        define_special_tokens(made, roles)
        return made
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    words = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in letters.items()}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    end = letters[ord(_END)]
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end, pad_token=end)
