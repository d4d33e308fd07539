"""Hostile files: every importer answers within a moment, with the file's name and the rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.cli import main

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
DOUBLED = "A=xxxxxxxx\n" + "A=$A$A\n" * 40 + "torchrun pretrain.py --num-layers $A\n"
SIZES = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("kind", "name", "text", "rule"),
    [
        ("megatron", "bomb.yaml", BOMB, "anchors and aliases are not allowed"),
        ("axolotl", "bomb.yaml", BOMB, "it holds more than 100,000 values, with aliases expanded"),
        ("axolotl", "round.yaml", "base_model: &a [*a]", "found unconstructable recursive node"),
        ("axolotl", "tag.yaml", "base_model: !x y", "tags are not allowed: the file must be plain data"),
        ("axolotl", "key.yaml", "base_model: a\n? [1]\n: b", "the key [] must be text"),
        ("megatron", "base.yaml", f"--lr: 1{':1' * 200_000}\n", "a number may have at most 40 characters"),
        ("megatron", "digits.yaml", f"--num-layers: {DIGITS}\n", "a number may have at most 40 characters"),
        ("megatron", "hex.yaml", f"--num-layers: 0x{'f' * 30}\n", "must fit in 64 bits, as every setting does"),
        ("megatron", "nan.yaml", "--num-layers: .nan\n", "nan is not a finite number"),
        ("megatron", "deep.yaml", f"--lr: {'[' * 20_000}\n", "it is nested deeper than 12"),
        ("megatron", "many.yaml", f"a: [{'1,' * 200_000}]\n", "it holds more than 100,000 values"),
        ("megatron", "deep.json", f'{{"a": {"[" * 200_000}', "it is nested deeper than 12"),
        ("megatron", "doubled.sh", DOUBLED, "its variables come to more than 128 KiB"),
        (
            "megatron",
            "digits.sh",
            f"x.py {SIZES} --lr 1 --seed {DIGITS}",
            "a number of 5000 digits, does not fit in 64 bits",
        ),
        ("megatron", "large.sh", f"x.py {SIZES} --lr 1e999", "inf is not a finite number"),
        ("megatron", "comments.sh", f"' {'# ' * 60_000}'", "it holds no argument"),
        ("megatron", "long.sh", f"x.py {'# ' * 100_000}", "this is not shell text: it is larger than 128 KiB"),
        ("megatron", "braces.sh", "x.py --lr " + "${a-" * 30_000, "quotes and substitutions are nested deeper than 40"),
        ("deepspeed", "deep.json", f'{{"a": {"[" * 200_000}', "it is nested deeper than 12"),
        (
            "deepspeed",
            "digits.json",
            f'{{"train_batch_size": {DIGITS}}}',
            "a number of 5000 digits, does not fit in 64 bits",
        ),
        ("deepspeed", "nan.json", '{"gradient_clipping": NaN}', "nan is not a finite number"),
        ("hf", "large.json", '{"model_type": "llama", "rope_theta": 1e999}', "inf is not a finite number"),
        ("hf", "digits.json", f'{{"model_type": "llama", "vocab_size": {"9" * 400}}}', "a number of 400 digits"),
        ("hf", "long.json", " " * (1 << 21), "the file cannot be read: it is larger than 1 MiB"),
    ],
)
def test_a_hostile_file_is_refused(
    kind: str, name: str, text: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["import", kind, str(path), "--json"]) == 2
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert all(error["path"].startswith(str(path)) for error in errors)
    assert any(rule in f"{error['path']} {error['rule']}" for error in errors)


def test_a_device_without_an_end_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "deepspeed", "/dev/zero"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "error: /dev/zero: the file cannot be read: it is a device, but only regular files are read" in said


def test_a_value_of_the_wrong_kind_gives_no_way_out_that_its_key_would_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = {"stage": 3, "zero_hpz_partition_size": {"a": {"b": "x"}}}
    (tmp_path / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": inside}))
    assert main(["check", "model=tiny", "--deepspeed", str(tmp_path / "ds.json"), "--no-native"]) == 2
    said = capsys.readouterr()
    assert "zero.hpz=x" not in said.out + said.err
