"""Tokenizers for planning and for training give the same ids, and refuse the same folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from launcher.config.recipes import literal
from launcher.data.prepare import prepared
from launcher.data.tokenizer import quick_tokenizer, tokenizer
from launcher.data.unusable import Unusable
from tests.support.chat import write_tokenizer
from tests.support.helpers import make_spec


def test_a_saved_truncation_or_padding_is_not_read(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    file = str(write_tokenizer(tmp_path / "words") / "tokenizer.json")
    saved = tokenizers.Tokenizer.from_file(file)
    saved.enable_truncation(3)
    saved.enable_padding(length=8)
    saved.save(file)
    quick, slow = quick_tokenizer(str(tmp_path / "words")), tokenizer(str(tmp_path / "words"))
    texts = ["hello world, how are you?" * 3, "a"]
    assert [list(ids) for ids in quick.encode_all(texts)] == [list(ids) for ids in slow.encode_all(texts)]
    assert len(quick.encode_all(texts)[1]) == 1


def test_special_tokens_are_given_to_both_and_new_ones_get_the_next_ids(tmp_path: Path) -> None:
    folder = str(write_tokenizer(tmp_path / "words"))
    size = tokenizer(folder).size
    given = {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|new|>", "<|end|>"]}
    roles = make_spec(
        "model=tiny", "data=text", f"data.tokenizer={folder}", f"data.special_tokens={literal(given)}"
    ).data.roles
    for words in (quick_tokenizer(folder, roles), tokenizer(folder, roles)):
        assert words.size == size + 1
        assert words.end == words.encode_all(["<|im_end|>"])[0][0]
        assert list(words.encode_all(["a<|new|>b"])[0])[1] == size
        assert size in words.special


def test_the_size_is_one_more_than_the_largest_id_so_that_ids_beyond_a_hole_are_kept(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    write_tokenizer(tmp_path / "words", None)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "row": 1, "far": 70_000}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "words/tokenizer.json"))
    (tmp_path / "words/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert quick_tokenizer(str(tmp_path / "words")).size == 70_001
    (tmp_path / "a.txt").write_text("row far")
    words = ("data=text", f"data.path={tmp_path}/a.txt", f"data.tokenizer={tmp_path}/words")
    found = prepared(make_spec("model=tiny", *words).data, tmp_path / "cache")
    assert found.dtype == "uint32"
    assert np.fromfile(found.path / "tokens.bin", dtype=found.dtype).tolist() == [1, 70_000]


def test_conversations_need_a_fast_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tokenizer(str(write_tokenizer(tmp_path / "words")))
    monkeypatch.setattr(type(slow._words), "is_fast", False)  # type: ignore[attr-defined]
    with pytest.raises(Unusable) as refused:
        slow.pieces(["hello"])
    finding = refused.value.finding
    assert (finding.path, finding.found) == ("data.tokenizer", str(tmp_path / "words"))
    assert finding.rule == (
        "it has no tokenizer.json, without which a token's position in a conversation is unknown: "
        "save it as a fast tokenizer"
    )
    assert finding.way_out == ("data.tokenizer=bytes",)
