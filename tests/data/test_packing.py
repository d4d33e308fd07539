"""Documents packed into samples: whole, as few as they fit into, and each token once."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from launcher.data.epoch import sizes_of, steps_of
from launcher.data.look import look
from launcher.data.packing import bins, packed
from launcher.data.prepare import prepared
from tests.support.helpers import make_spec


@given(st.lists(st.integers(2, 40), max_size=60), st.integers(40, 60))
def test_every_piece_is_in_one_bin_none_overflows_and_no_two_would_go_into_one(sizes: list[int], capacity: int) -> None:
    found = bins(sizes, capacity)
    assert sorted(place for each in found for place in each) == list(range(len(sizes)))
    used = sorted(sum(sizes[place] for place in each) for each in found)
    assert all(size <= capacity for size in used)
    assert len(used) < 2 or used[0] + used[1] > capacity
    assert found == sorted(found)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(2, 12))
def test_a_long_document_goes_on_in_pieces_that_predict_each_of_its_tokens_once(sizes: list[int], length: int) -> None:
    found = packed(accumulate(sizes), length, split=True)
    pieces = sorted(piece for index in range(len(found.ends)) for piece in found.pieces(index))
    predicted = [token for start, stop in pieces for token in range(start + 1, stop)]
    starts = list(accumulate(sizes, initial=0))
    assert predicted == [token for start, end in pairwise(starts) for token in range(start + 1, end)]
    assert all(stop - start <= length + 1 for start, stop in pieces)
    cut = packed(accumulate(sizes), length, split=False)
    assert len(cut.starts) == sum(size > 1 for size in sizes)


def test_conversations_are_counted_as_the_job_packs_them(tmp_path: Path) -> None:
    rows = "".join(f'{{"prompt": "{"q" * (3 + n % 7)}", "completion": "{"a" * (5 + n % 11)}"}}\n' for n in range(40))
    (tmp_path / "chat.jsonl").write_text(rows)
    words = (
        "model=tiny",
        "data=chat",
        f"data.path={tmp_path}/chat.jsonl",
        "train.sequence_length=64",
        "train.epochs=1",
    )
    counts = []
    for how in ("none", "documents", "concat"):
        spec = make_spec(*words, f"data.packing={how}", "train.micro_batch_size=1", "cluster.gpus_per_node=1")
        survey = look(spec.data)
        assert survey is not None
        [samples] = sizes_of(spec, survey) or []
        assert samples == spec.steps == steps_of(spec, prepared(spec.data, tmp_path / "cache"))
        counts.append(spec.steps)
    assert counts[0] == 40
    assert counts[0] > counts[1] >= counts[2] > 0
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1
