"""Data sets and tokenizers by their names on the Hub (of this machine): fetched once, then read as files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyarrow import ipc
from tokenizers import Tokenizer, models, pre_tokenizers

from launcher.cli import main
from launcher.data import documents, hub, token_folder
from launcher.data.files import files_of
from launcher.data.unusable import Unusable
from tests.support.helpers import make_spec

COMMIT = "c" * 40
ASKED: list[str] = []


def _rows(word: str, number: int) -> bytes:
    return "".join(f"{json.dumps({'text': f'{word} {place}'})}\n" for place in range(number)).encode()


def _tokenizer() -> bytes:
    made = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made.to_str().encode()


CARD = """---
configs:
- config_name: big
  data_files: [{split: train, path: big.jsonl}]
- config_name: small
  default: true
  data_files: [{split: train, path: train.jsonl}, {split: test, path: test.jsonl}]
---
"""
FILES = {
    "datasets/org/words": {
        "README.md": CARD.encode(),
        "big.jsonl": _rows("big", 50),
        "train.jsonl": _rows("small", 20),
        "test.jsonl": _rows("test", 5),
    },
    "org/tokens": {
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
    },
}


class Hub(BaseHTTPRequestHandler):
    """Answers as the Hub does, for what ``FILES`` holds."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        ASKED.append(f"{self.command} {path}")
        content, headers = _found(path)
        status = 404 if content is None else 200
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if body and content:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def _found(path: str) -> tuple[bytes | None, dict[str, str]]:
    kind = "models/" if path.startswith("api/models/") else ""
    for repository, files in FILES.items():
        api = f"api/{kind}{repository}"
        if path.startswith(api):
            rest = path.removeprefix(api)
            rows = [
                {"type": "file", "path": name, "size": len(text), "oid": _oid(text)} for name, text in files.items()
            ]
            if "/tree/" in rest or "/paths-info/" in rest:
                return json.dumps(rows if "/tree/" in rest else []).encode(), {"Content-Type": "application/json"}
            siblings = [{"rfilename": name} for name in files]
            said = {"id": repository.removeprefix("datasets/"), "sha": COMMIT, "siblings": siblings, "tags": []}
            return json.dumps(said).encode(), {"Content-Type": "application/json"}
        if path.startswith(f"{repository}/resolve/"):
            name = path.removeprefix(f"{repository}/resolve/").partition("/")[2]
            if name in files:
                return files[name], {"ETag": f'"{_oid(files[name])}"', "X-Repo-Commit": COMMIT}
            return None, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
    return None, {"X-Error-Code": "RepoNotFound"}


def _oid(text: bytes) -> str:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


PROGRAM = """
import json, sys
from pathlib import Path
from launcher.cli import main
WORDS = ["model=tiny", "data=huggingface", "data.path=org/words", "data.tokenizer=org/tokens@main",
         "train.sequence_length=8", "hardware=cpu"]
assert main(["check", "--json", *WORDS]) == 0
for more in ([], ["data.config=big", "data.max_samples=30"]):
    assert main(["prepare", *WORDS, *more]) == 0
"""
LATER = """
import sys
from launcher.cli import main
WORDS = ["model=tiny", "data=huggingface", "data.path=org/words", "data.tokenizer=org/tokens@main",
         "train.sequence_length=8", "hardware=cpu"]
assert main(["check", "--json", *WORDS]) == 0
assert main(["prepare", "--json", *WORDS]) == 0
assert main(["check", "--json", *WORDS, "data.split=other"]) == 2
assert "datasets" not in sys.modules and "huggingface_hub" not in sys.modules
"""


@pytest.fixture(scope="module")
def environment(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("hub")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    kept |= {"HF_HOME": str(folder / "hf"), "HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1"}
    return kept | {"LAUNCH_CACHE": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1"}


def _run(program: str, environment: dict[str, str]) -> str:
    folder = Path(environment["HF_HOME"]).parent
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.thorough
def test_a_data_set_and_its_tokenizer_are_fetched_by_prepare_and_then_read_without_a_network(
    environment: dict[str, str],
) -> None:
    first = _run(PROGRAM, environment)
    said = json.loads(first.splitlines()[0])
    rules = {warning["path"]: warning["rule"] for warning in said["warnings"]}
    assert "not in this machine's Hugging Face cache" in rules["data.path"]
    ASKED.clear()
    offline = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    later = _run(LATER, offline)
    assert not ASKED
    data = json.loads(later.splitlines()[0])["data"]
    assert (data["rows"], data["rows_exact"], data["tokens"], data["tokens_error"]) == (20, True, 40, 0)
    assert "small has" not in later
    assert "org/words has test, train" in later


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caches as the packages leave them, with two configurations of a data set and a tokenizer."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for repository, files in (("datasets--org--Words", ("README.md",)), ("models--org--tokens", FILES["org/tokens"])):
        place = tmp_path / "hub" / repository
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(COMMIT)
        (place / "snapshots" / COMMIT).mkdir(parents=True)
        for name in files:
            (place / "snapshots" / COMMIT / name).write_bytes({"README.md": CARD.encode(), **FILES["org/tokens"]}[name])
    for config, number in (("big", 50), ("small", 20)):
        place = tmp_path / "datasets" / "org___words" / config / "0.0.0" / COMMIT
        place.mkdir(parents=True)
        splits = {"train": {"num_examples": number}, "test": {"num_examples": 5}}
        (place / "dataset_info.json").write_text(json.dumps({"splits": splits}))
        for split, rows in (("train", number), ("test", 5)):
            table = pa.table({"text": [f"one two {row}" for row in range(rows)]})
            with (
                pa.OSFile(str(place / f"words-{split}.arrow"), "wb") as file,
                ipc.new_stream(file, table.schema) as out,
            ):
                out.write_table(table)
    return tmp_path


WORDS = ("model=tiny", "data=huggingface", "data.path=org/Words")


def test_the_caches_are_read_as_files_by_configuration_split_and_revision(cached: Path) -> None:
    small, big = (hub.built(make_spec(*WORDS, *more).data) for more in ((), ("data.config=big",)))
    assert small is not None
    assert big is not None
    assert (small.rows, big.rows, small.commit) == (20, 50, COMMIT)
    assert hub.built(make_spec(*WORDS, f"data.revision={COMMIT}").data) == small
    assert hub.built(make_spec(*WORDS, "data.revision=v2").data) is None
    assert hub.built(make_spec(*WORDS, "data.config=other").data) is None
    with pytest.raises(Unusable, match=r"data\.split=dev: org/Words has test, train; try data\.split=test"):
        hub.built(make_spec(*WORDS, "data.split=dev").data)
    assert hub.tokenizer_folder("org/tokens") == cached / "hub" / "models--org--tokens" / "snapshots" / COMMIT
    assert hub.tokenizer_folder("org/tokens@v3") is None
    assert hub.missing_tokenizer("org/tokens@v3").finding.way_out[0].startswith("hf download org/tokens --revision v3")


def test_a_check_looks_at_a_data_set_in_the_cache_and_says_that_another_one_is_not_there(
    cached: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "data.tokenizer=org/tokens", "train.sequence_length=8", "hardware=h100_80g")
    assert main(["check", "--json", *words]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["rows"], data["rows_exact"], data["tokens"], data["tokens_error"]) == (20, True, 60, 0)
    assert main(["check", "--json", *words, "data.max_samples=7"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["rows"], data["tokens"], data["tokens_error"]) == (7, 21, 0)
    for path, tokenizer, wrong in (("org/other", "org/tokens", "data.path"), ("org/Words", "org/x", "data.tokenizer")):
        more = (f"data.path={path}", f"data.tokenizer={tokenizer}", "cluster=slurm")
        assert main(["check", "--json", *words, *more]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["data"] is None
        assert wrong in {warning["path"] for warning in said["warnings"]}
    assert "its first node needs network access" in str(said) or wrong == "data.tokenizer"


def test_the_first_rows_alone_are_tokens_ids(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_rows("word", 9))
    data = make_spec("model=tiny", f"data.path={tmp_path}", "data.max_samples=4").data
    assert list(documents.documents(data)) == [f"word {place}" for place in range(4)]
    assert list(documents.table_rows(data)) == [{"text": f"word {place}"} for place in range(4)]
    with pytest.raises(Unusable, match=r"data\.config=x: the data is files on this machine"):
        files_of(make_spec("model=tiny", "data=huggingface", f"data.path={tmp_path}/*", "data.config=x").data)
    whole = make_spec("model=tiny", f"data.path={tmp_path}").data
    assert token_folder.settings(whole) | {"max_samples": 4} == token_folder.settings(data)
