"""Documents of one sample: attention and positions are those of each alone, and so is the loss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.data.prepare import prepared
from launcher.worker import marks
from launcher.worker.data.corpus import Documents, TokenFiles, mapped
from launcher.worker.model import LanguageModel, initial, network
from tests.support.helpers import make_spec

LENGTH = 31


@pytest.mark.parametrize("words", [("model=tiny",), ("model=tiny", "model.attention=eager")])
def test_the_loss_of_packed_documents_is_that_of_each_alone(words: tuple[str, ...]) -> None:
    specs = [
        make_spec(*words, "hardware=cpu", "precision=fp32", f"data.packing={how}") for how in ("documents", "none")
    ]
    made = network.network(specs[0].model, torch.float32)
    packed, alone = (LanguageModel(made, spec).eval() for spec in specs)
    packed.to_empty(device="cpu")
    network.retie(made)
    initial.fill(made, 1)
    documents = [torch.randint(1, 200, (size,)) for size in (7, 5, 12)]
    joined = torch.cat([*documents, torch.zeros(LENGTH + 1 - 24, dtype=torch.int64)]).numpy()
    row = torch.from_numpy(marks.mark(joined, np.arange(LENGTH + 1) < 24, (7, 12, 24)))[None]
    places = [place for size in (7, 5, 12, LENGTH - 24) for place in range(size)]
    assert marks.positions(row[:, :-1]).tolist() == [places]
    assert marks.ids(row)[0].tolist() == joined.tolist()
    assert int(marks.count(row)) == 6 + 4 + 11
    loss, apart = packed(row.repeat(2, 1)) / 2, sum(alone(each[None]) for each in documents)
    torch.testing.assert_close(loss, apart, rtol=1e-5, atol=1e-5)


def test_one_folder_of_ids_is_read_as_documents_packed_documents_and_one_row(tmp_path: Path) -> None:
    rows = ["a" * 5, "b" * 20, "c" * 3, "d" * 9]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'text': row})}\n" for row in rows))
    data = make_spec("model=tiny", f"data.path={tmp_path}/a.jsonl").data
    folder = prepared(data, tmp_path / "cache")
    assert folder.ends().tolist() == [5, 25, 28, 37]
    cut = Documents(folder, *folder.spans, length=10, vocabulary=256)
    assert cut.size == 4
    assert cut.sample(0).tolist() == [97] * 5 + [~0] * 6
    assert cut.sample(1).tolist() == [98] * 11
    both = Documents(folder, *folder.spans, length=10, vocabulary=256, apart=True)
    assert both.size == 4
    first = torch.from_numpy(both.sample(0))[None]
    assert marks.ids(first).tolist() == [[97] * 5 + [99] * 3 + [0] * 3]
    assert int(marks.count(first)) == 4 + 2
    assert marks.positions(first).tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]]
    chat = make_spec("model=tiny", "data=chat", "data.packing=concat", f"data.path={tmp_path}/chat.jsonl").data
    (tmp_path / "chat.jsonl").write_text(json.dumps({"prompt": "q" * 8, "completion": "a" * 8}) + "\n")
    of_chat = prepared(chat, tmp_path / "cache")
    tokens, trained = mapped(of_chat)
    row = TokenFiles([of_chat.path / "tokens.bin"], "uint8", length=16, vocabulary=256, trained=trained).sample(0)
    assert [value >= 0 for value in row] == [bool(value) for value in trained[:17]]
    assert marks.ids(torch.from_numpy(row)).tolist() == tokens[:17].tolist()
