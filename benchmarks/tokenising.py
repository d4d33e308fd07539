"""Speed and memory of tokenizing text: ``python -m benchmarks.tokenising``.

The text is Python's own sources, the tokenizer `bytes` or a byte-level BPE of 32,000 entries that is trained on a part
of it. It is read as one long file and as JSON lines of one function or paragraph each. Times are CPU seconds over all
cores, and wall seconds; memory is the peak of the process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep, takes_no_option

ENTRIES = 32_000
TEXT_BYTES = {"bytes": 400_000_000, "bpe": 30_000_000}
_TRAINED_ON = 12_000_000


def main() -> None:
    """Write the texts, tokenise each in a process of its own, and keep the figures."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _train(folder / "bpe")
        for tokenizer, size in TEXT_BYTES.items():
            long, lines = folder / f"{tokenizer}.txt", folder / f"{tokenizer}.jsonl"
            _write(long, lines, size)
            for path in (long, lines):
                words = "bytes" if tokenizer == "bytes" else str(folder / "bpe")
                command = [sys.executable, "-m", "benchmarks.tokenising", "--one", words, str(path), name]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rows.append({"tokenizer": tokenizer, "file": path.suffix, **json.loads(done.stdout)})
                path.unlink()
    keep("tokenising", "python -m benchmarks.tokenising", {"cores": len(os.sched_getaffinity(0)), "rows": rows})


def one(words: str, path: str, folder: str) -> None:
    """Tokenise one file and print the figures."""
    from launcher.config.request import request
    from launcher.data.prepare import prepared

    spec = request(["model=tiny", "data=text", f"data.path={path}", f"data.tokenizer={words}"]).require()
    wall, cpu = time.perf_counter(), time.process_time()
    found = prepared(spec.data, Path(folder) / "tokens")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    figures = {
        "text_mb": round(found.text_bytes / 1e6, 1),
        "tokens": found.tokens,
        "documents": found.documents,
        "wall_seconds": round(wall, 2),
        "processor_seconds": round(cpu, 2),
        "mb_per_minute": round(60 * found.text_bytes / 1e6 / wall, 1),
        "mb_per_minute_and_core": round(60 * found.text_bytes / 1e6 / cpu, 1),
        "most_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
    }
    print(json.dumps(figures))


def _sources() -> Iterator[str]:
    """Texts of this Python, again and again."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    while True:
        for path in paths:
            try:
                yield path.read_text()
            except (OSError, UnicodeDecodeError):
                continue


def _write(long: Path, lines: Path, size: int) -> None:
    with long.open("w") as text, lines.open("w") as rows:
        for source in _sources():
            text.write(source)
            for part in filter(str.strip, source.split("\n\n\n")):
                rows.write(json.dumps({"text": part}) + "\n")
            if text.tell() >= size:
                return


def _train(folder: Path) -> None:
    """A byte-level BPE, as GPT-2's is, in a folder as ``data.tokenizer`` takes it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(_some(_TRAINED_ON), trainer)
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _some(size: int) -> Iterator[str]:
    for text in _sources():
        yield text
        size -= len(text)
        if size < 0:
            return


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:5])
    else:
        takes_no_option(__doc__)
        main()
