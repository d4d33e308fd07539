"""Lists of Megatron-LM that are refused by what they are: other models, and programs that train nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.importers import Imported
from launcher.importers.megatron import read
from launcher.importers.megatron.kinds import ARGUMENTS
from launcher.importers.megatron.kinds import TRAINS_NOTHING as NOTHING
from tests.support.foreign_files import SIZES

FOLDER = Path(__file__).parent / "files" / "megatron"
WHOLE = f"{SIZES} --mock-data --micro-batch-size 1 --global-batch-size 8 --train-iters 100 --bf16"


def imported(arguments: str) -> Imported:
    return read(f"{WHOLE} {arguments}", "args.txt")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("args_bert.yaml", "BERT"),
        ("args_t5.yaml", "T5, an encoder and a decoder"),
        ("args_retro.yaml", "Retro, which retrieves neighbours of its text"),
        ("args_vision_language.yaml", "a model of images and text"),
        ("args_grpo.yaml", "reinforcement learning (GRPO)"),
        ("args_gated_delta_net.yaml", "a model with another attention"),
        ("args_heterogeneous.yaml", "a model whose layers differ in size"),
    ],
)
def test_a_list_of_another_model_is_refused_by_its_name_and_never_taken_for_a_gpt(
    name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "--megatron-args", str(FOLDER / name), "--partial", "--no-native", "--json"]
    assert main([*words, "model.vocab_size=1000", "hardware=h100_80g"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "invalid"
    assert [error["rule"].startswith(f"it is of {kind}") for error in document["errors"]] == [True]


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("pretrain_bert.py", "BERT"),
        ("examples/t5/pretrain_t5.py", "T5"),
        ("pretrain_vlm.py", "a model of images and text"),
        ("pretrain_mamba.py", "a hybrid"),
        ("pretrain_vision_classify.py", "an image model"),
        ("pretrain_ict.py", "a retriever"),
        ("train_rl.py", "reinforcement learning"),
    ],
)
def test_the_program_says_of_which_model_a_list_is(program: str, kind: str) -> None:
    [error] = read(f"torchrun --nproc_per_node 8 {program} {WHOLE}", "run.sh").errors
    name = program.rpartition("/")[2]
    assert (error.path, error.found) == ("run.sh: the program", name)
    assert error.rule.startswith(f"it is of {kind}")
    assert error.way_out == (f"script={name}",)


TRAINS_NOTHING = "nothing is trained there, and launch reads lists of trainings alone"


@pytest.mark.parametrize(
    ("command", "where", "kind"),
    [
        ("tools/run_text_generation_server.py", "the program", "inference, which generates text"),
        ("examples/inference/gpt_static_inference.py", "the program", "inference, which generates text"),
        ("sample_gpt.py", "the program", "inference, which generates text"),
        ("tools/checkpoint/convert.py", "the program", "a conversion of a checkpoint"),
        ("hf_llama_conversion.py", "the program", "a conversion of a checkpoint"),
        ("evaluate_gpt.py", "the program", "an evaluation of a trained model"),
        ("-m lm_eval", "the program", "an evaluation of a trained model"),
        ("tasks/main.py --task LAMBADA", "--task", "an evaluation of a trained model"),
        ("tools/preprocess_data.py", "the program", "a preparation of data"),
        ("pretrain_gpt.py --skip-train", "--skip-train", "an evaluation of a trained model"),
        ("train.py --eval-only", "--eval-only", "an evaluation of a trained model"),
        ("run.py --num-tokens-to-generate 64", "--num-tokens-to-generate", "inference, which generates text"),
        ("pretrain_gpt.py --ckpt-convert-format torch_dist", "--ckpt-convert-format", "a conversion of a checkpoint"),
    ],
)
def test_a_program_that_trains_nothing_is_refused_by_what_it_is_whatever_is_left_out(
    command: str, where: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, _, rest = command.partition(" --")
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 8 {program} {WHOLE}{' --' if rest else ''}{rest}")
    assert main(["import", "megatron", str(script), "--partial", "--json"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert error["path"] == f"{script}: {where}"
    assert error["rule"] == f"it is {kind}: {TRAINS_NOTHING}"


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("inference", "inference, which"), ("Evaluation", "an evaluation"), ("ckpt_conversion", "a conversion")],
)
def test_a_functional_test_of_another_mode_than_training_is_refused(mode: str, kind: str) -> None:
    content = {"MODE": mode, "MODEL_ARGS": {"--num-layers": 2}}
    errors = read(json.dumps(content), "case.json").errors
    assert next(error.rule for error in errors if error.path == "case.json: MODE").startswith(f"it is {kind}")
    left = {left.key: left for left in read(json.dumps(content), "case.json").left_out}
    assert left["MODE"].matters
    assert left["MODE"].effect.startswith(f"the list is of {kind}")
    training = read(json.dumps(content | {"MODE": "pretraining"}), "case.json")
    assert not [error for error in training.errors if error.path == "case.json: MODE"]


def test_the_indexer_of_sparse_attention_is_no_retriever() -> None:
    def rule(argument: str) -> str:
        [error] = imported(argument).errors
        return error.rule

    assert rule("--indexer-loss-coeff 0.1").startswith("it is of a model with another attention (gated delta net, Deep")
    assert rule("--indexer-batch-size 128").startswith("it is of a retriever (inverse cloze task)")
    assert rule("--indexer-log-interval 100").startswith("it is of a retriever (inverse cloze task)")


def test_an_argument_is_of_one_kind_alone() -> None:
    names = [name for table in (ARGUMENTS, NOTHING) for of_kind in table.values() for name in of_kind]
    assert len(names) > 80
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("program", ["pretrain_gpt.py", "megatron/training/pretrain_gpt.py", "train.py", "gpt.py",
                                     "train_and_evaluate.py", "main.py", "pretrain_and_export.py"])  # fmt: skip
def test_a_program_that_trains_a_decoder_is_taken(program: str) -> None:
    assert read(f"torchrun --nproc_per_node 8 {program} {WHOLE}", "run.sh").errors == ()
