"""Which texts are taken for secrets, which are not, and that a message repeats none."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.base import secret
from launcher.base.errors import ConfigError, SubmitError
from launcher.rules import secrets
from launcher.spec import edit
from launcher.spec.parse import known_keys
from tests.support.helpers import composed_once, make_spec
from tests.support.secrets import HEX, KNOWN, LETTERS, NAMED

ORDINARY = [
    "meta-llama/Llama-3.1-8B-Instruct",
    f"commit {HEX[:40]}",
    f"runs/20260101-120000-tiny-fsdp-{HEX[:6]}",
    f"/data/{HEX[:64]}/tokens.bin",
    f"s3://bucket/{HEX[:40]}",
    f"wandb/run-20260101_120000-{HEX[:8]}",
    "https://mlflow.example.org:5000/api",
    "ssh://git@example.org/me/code",
    "export HF_TOKEN=$(cat ~/.token)",
    "export WANDB_API_KEY=$MY_KEY",
    "SSH_KEY=/home/me/.ssh/id_ed25519",
    "--eos-token=</s> --pad-token <|pad|>",
    "--text-key=messages_2024",
    "--special-token-file words.txt",
    "task-sk-learn-random-forest-benchmark",
    "data.token_dtype=uint32",
    "model.num_key_value_heads=8",
    "cluster.pass_environment=[HF_TOKEN,WANDB_API_KEY]",
    "TOKENIZERS_PARALLELISM=false NCCL_IB_PKEY=0x8001 KEYBOARD=us",
    "moe-token-dispatcher-type=alltoall",
    "PWD=/home/me OLDPWD=/scratch GIT_ASKPASS=/usr/bin/askpass PGPASSFILE=/home/me/.pgpass",
    "cd $PWD && export MYSQL_PWD=$(cat ~/.word)",
    "curl -u $USER:$WORD https://example.org/a:b",
    "curl -u me https://example.org:8080/a@main --user-agent mine:1",
    "docker run --user 1000:1000 image",
    "https://example.org:8080/path@v1",
    "git clone ssh://git@example.org:2222/me/code",
    "echo $WORD | docker login -u me --password-stdin",
    "huggingface-cli login --token $HF_TOKEN -p",
    "mysql -p < dump.sql",
    "sshpass -p $WORD ssh node",
    "COMPASS=north BYPASS=all",
]


@pytest.mark.parametrize("text", [*KNOWN, *NAMED])
def test_a_secret_is_found_and_left_out_of_messages(text: str) -> None:
    assert secret.find(text)
    said = secret.redacted(text)
    assert secret.NOT_SHOWN in said
    assert not any(part in said for part in ("hunter2", LETTERS[:20], HEX[:30]))


@pytest.mark.parametrize("text", ORDINARY)
def test_what_only_looks_long_or_is_named_alike_is_no_secret(text: str) -> None:
    assert secret.find(text) is None
    assert next(secret.find_all({"value": [text]}), None) is None


def test_names_are_judged_by_their_parts() -> None:
    yes = (
        "HF_TOKEN DB_PASS DB_PASSWD db-password apiKey wandb.api_key MY_PAT AWS_SECRET_ACCESS_KEY BEARER_1 TOKEN_VALUE "
        "PGPASS SSHPASS PGPASSWORD MYSQL_PWD LDAP_BINDPW"
    )
    no = (
        "PWD OLDPWD GIT_ASKPASS PGPASSFILE COMPASS data.path keyboard num_key_value_heads tokenizer monkey pattern "
        "bypass PATH PASSAGE token_dtype KEY_FILE"
    )
    assert [name for name in yes.split() if not secret.of_name(name)] == []
    assert [name for name in no.split() if secret.of_name(name)] == []
    assert [key for key in known_keys() if secret.of_name(key)] == []


def test_a_secret_is_found_at_its_place_in_data() -> None:
    content = {"a": [{"b": KNOWN[0]}], "wandb": {"api_key": "hunter2"}, "argv": ["x", "--api-key", "hunter2"]}
    found = {place: form.variable for place, form in secret.find_all(content)}
    assert found == {"a.b": "HF_TOKEN", "wandb.api_key": "API_KEY", "argv": "API_KEY"}


def test_an_error_repeats_no_secret_wherever_it_stands() -> None:
    error = ConfigError("cluster.environment.HF_TOKEN", "hunter2", "not hunter2", ["cluster.environment=hunter2"])
    assert "hunter2" not in f"{error} {error.where} {error.as_dict()}"
    error = ConfigError(f"x={KNOWN[0]}", {"uri": KNOWN[16]}, f"{KNOWN[3]} is no word", [f"a={KNOWN[0]}"])
    assert secret.find(f"{error} {error.where} {error.as_dict()}") is None
    assert (
        str(SubmitError(f"{KNOWN[17]} does not answer"))
        == f"postgresql://{secret.NOT_SHOWN}@db:5432/runs does not answer"
    )


def test_no_shipped_option_and_no_recipe_holds_one() -> None:
    root = Path(__file__).parent.parent
    texts = [path.read_text() for folder in ("conf", "recipes") for path in sorted((root / folder).rglob("*.yaml"))]
    assert len(texts) > 100
    assert [text for text in texts if secret.find(text)] == []


def test_none_of_1200_random_runs_is_taken_to_hold_one() -> None:
    chance = random.Random(13)
    texts: dict[str, Callable[[], object]] = {
        "run.name": lambda: f"{chance.choice(['a', 'sk-run', 'task_hf', 'key'])}-{chance.getrandbits(48):012x}",
        "data.path": lambda: f"/data/{chance.getrandbits(256):064x}/part-*.jsonl",
        "model.source": lambda: f"org/model at {chance.getrandbits(160):040x}",
        "data.tokenizer": lambda: f"/models/snapshots/{chance.getrandbits(160):040x}",
        "save.load": lambda: (
            f"runs/2026{chance.randrange(10**4):04}-{chance.getrandbits(24):06x}@{chance.randrange(999)}"
        ),
        "tracking.uri": lambda: f"https://mlflow-{chance.randrange(99)}.example.org:5000",
        "script_args": lambda: (
            "--seed",
            str(chance.getrandbits(30)),
            "--key",
            "text",
            f"--sha={chance.getrandbits(160):040x}",
        ),
        "cluster.setup": lambda: (f"export RUN_ID={chance.getrandbits(128):032x}", "source env/bin/activate"),
        "cluster.extra": lambda: {"comment": f"{chance.getrandbits(128):032x}", "mail-user": "me@example.org"},
    }
    specs = [composed_once("model=tiny", f"parallel={name}") for name in ("fsdp", "zero3", "tp_pp")]
    for _ in range(1200):
        chosen = {path: made() for path, made in texts.items() if chance.random() < 0.6}
        assert [str(error) for error in secrets.check(edit.changed_at(chance.choice(specs), chosen))] == []


def test_the_way_out_of_a_setting_with_a_secret_ends_its_error() -> None:
    words = ("model=tiny", "tracking=mlflow", f"tracking.uri={KNOWN[16]}")
    (error,) = secrets.check(make_spec(*words))
    assert error.way_out == (
        "tracking.uri=https://example.org/path"
        " cluster.pass_environment=[MLFLOW_TRACKING_USERNAME,MLFLOW_TRACKING_PASSWORD]",
    )
    assert list(secrets.check(make_spec(*words, *error.way_out[0].split()))) == []
