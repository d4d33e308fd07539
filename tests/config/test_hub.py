"""A model of the Hub is fetched through `huggingface_hub`, here from a Hub of this machine."""

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

import pytest

from tests.support.foreign_files import LLAMA3_8B

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = json.dumps(LLAMA3_8B | SIZES | {"num_hidden_layers": 2, "vocab_size": 1000}).encode()
ASKED: list[str] = []


class Hub(BaseHTTPRequestHandler):
    """Has the config.json of org/there; org/gated asks who it is."""

    def do_HEAD(self) -> None:
        ASKED.append(f"{self.command} {self.path}")
        if self.path == "/org/there/resolve/main/config.json":
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha1(CONFIG, usedforsecurity=False).hexdigest()}"')
            self.send_header("X-Repo-Commit", "a" * 40)
            self.send_header("Content-Length", str(len(CONFIG)))
        else:
            gated = "gated" in self.path
            self.send_response(403 if gated else 404)
            self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
            self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if "/org/there/" in self.path:
            self.wfile.write(CONFIG)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


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
import os, sys
from launcher.cli import main
for words in (["check", "model=org/there"], ["check", "model=org/nope"], ["check", "model=org/gated"]):
    print("exit", main([*words, "--json"]))
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
print("exit", main(["check", "model=org/there", "--json"]))
print("exit", main(["check", "model=org/away", "--json"]))
"""


def test_a_config_is_fetched_once_and_what_goes_wrong_is_said_at_once(address: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(tmp_path / "hub"), "HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 10, done.stderr
    assert [line for line in lines if line.startswith("exit")] == ["exit 0", "exit 2", "exit 2", "exit 0", "exit 2"]
    there, nope, gated, again, away = (json.loads(line) for line in lines[::2])
    assert (there["verdict"], again["parameters"]) == ("fits", there["parameters"])
    assert nope["errors"][0]["rule"] == "the Hub has no such model, or it is private and `hf auth login` is needed"
    assert nope["errors"][0]["way_out"] == ["hf download org/nope config.json", "model=./folder"]
    assert gated["errors"][0]["rule"].startswith("it is gated: request access")
    assert away["errors"][0]["rule"].startswith("the Hub cannot be reached: ")
    assert "Retrying" not in done.stderr
    assert [line for line in ASKED if "/org/there/" in line][-1].startswith("GET")
    assert not any("safetensors" in line for line in ASKED), "no weights are fetched by a check"
