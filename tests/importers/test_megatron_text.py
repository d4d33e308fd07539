"""Argument lists as text: whose words are whose, what is not known, and what asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base.errors import ConfigErrors
from launcher.cli import main
from launcher.importers.megatron.arguments import Parsed
from launcher.importers.megatron.parse import parse

FOLDER = Path(__file__).parent / "files" / "megatron"
SIZES = {"num-layers": 8, "hidden-size": 1024, "num-attention-heads": 8, "seq-length": 1024, "lr": 1e-4, "bf16": True}


def parsed(name: str, **given: str) -> Parsed:
    variables = {key.removeprefix("_"): value for key, value in given.items()}
    return parse((FOLDER / name).read_text(), name, variables)


def values(found: Parsed) -> dict[str, object]:
    return {name: argument.value for name, argument in found.arguments.items()}


def errors(found: Parsed) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(error.path, error.rule, error.way_out) for error in found.errors]


@pytest.mark.parametrize(
    ("name", "program", "launch"),
    [
        ("bare_arguments.txt", None, {}),
        ("list_without_a_command.sh", None, {}),
        ("words.json", None, {}),
        ("comments_between_lines.sh", "pretrain_gpt.py", {"nproc-per-node": 8}),
        ("heredoc_for_the_queue.sh", "pretrain_gpt.py", {"nnodes": 2, "nproc-per-node": 8}),
        ("in_a_container.sh", "pretrain_gpt.py", {"nproc-per-node": 8}),
        ("maps_and_indirect_names.sh", "pretrain_gpt.py", {}),
        ("options_of_the_script.sh", "pretrain_gpt.py", {"nproc-per-node": 8}),
        ("the_same_training_twice.sh", "pretrain_gpt.py", {"nnodes": 2, "nproc-per-node": 8}),
    ],
)
def test_a_list_in_any_shape_gives_its_arguments_and_those_of_its_launcher(
    name: str, program: str | None, launch: dict[str, int]
) -> None:
    found = parsed(name)
    assert SIZES.items() <= values(found).items()
    assert found.program == program
    assert {key: argument.value for key, argument in found.launcher_arguments.items()} == launch
    assert not found.errors
    assert not found.unset


def test_a_batch_job_says_its_nodes_and_the_words_of_srun_are_not_the_trainings() -> None:
    found = parsed("batch_job_with_nested_quotes.sh")
    assert not {"container-image", "container-mounts", "mpi"} & (
        found.arguments.keys() | found.launcher_arguments.keys()
    )
    launch = {key: argument.value for key, argument in found.launcher_arguments.items()}
    assert (launch["nnodes"], launch["nproc-per-node"], launch["ntasks-per-node"]) == (4, 8, 1)
    assert found.arguments["wandb-exp-name"].words == ("first run",)
    assert values(found)["sequence-parallel"] is True


def test_defaults_of_defaults_and_arithmetic_give_numbers() -> None:
    found = parsed("defaults_of_defaults.sh")
    assert (values(found)["global-batch-size"], values(found)["train-iters"]) == (16, 146484)
    assert "sequence-parallel" not in found.arguments
    with_sp = parsed("defaults_of_defaults.sh", SP="1", TP="4", SLURM_NNODES="4")
    assert (values(with_sp)["tensor-model-parallel-size"], values(with_sp)["global-batch-size"]) == (4, 32)
    assert values(with_sp)["sequence-parallel"] is True


def test_the_branch_of_a_default_is_taken_and_a_given_value_takes_another() -> None:
    small, large = parsed("branch_by_size.sh"), parsed("branch_by_size.sh", MODEL_SIZE="7b")
    assert (values(small)["num-layers"], "swiglu" in small.arguments) == (12, False)
    assert (values(large)["num-layers"], "swiglu" in large.arguments) == (32, True)


def test_a_variable_that_decides_is_asked_for_with_the_values_that_the_file_compares_it_with() -> None:
    rule = "has no value; it decides --num-layers, --hidden-size, --num-attention-heads (line 4)"
    assert errors(parsed("branch_that_asks.sh")) == [
        ("branch_that_asks.sh: $1", rule, ("--set 1=2b", "--set 1=13b")),
    ]
    found = parsed("branch_that_asks.sh", _1="13b")
    assert (values(found)["hidden-size"], values(found)["save"]) == (5120, "./runs/13b")
    assert not found.errors


def test_what_decides_of_no_argument_is_not_asked_for_and_a_quoted_pair_is_two_words() -> None:
    rule = "has no value; it decides --fp8-format, --fp8-recipe (line 7)"
    assert errors(parsed("branch_with_fp8.sh")) == [
        ("branch_with_fp8.sh: $PRECISION", rule, ("--set PRECISION=fp8",)),
    ]
    found = parsed("branch_with_fp8.sh", PRECISION="fp8")
    assert (values(found)["fp8-format"], values(found)["fp8-recipe"]) == ("hybrid", "tensorwise")
    assert not found.errors
    quoted = parse('A=("--fp8-format hybrid" --num-layers 2); python pretrain_gpt.py "${A[@]}"', "a.sh")
    assert values(quoted) == {"fp8-format": "hybrid", "num-layers": 2}
    assert quoted.not_understood == (
        "'--fp8-format hybrid' is one word, which Megatron-LM refuses: it is taken as several",
    )


def test_several_trainings_that_differ_are_an_error_until_one_is_meant() -> None:
    loop = "the loop in which line 3 trains has several values, and the arguments differ"
    assert errors(parsed("loop_over_degrees.sh")) == [
        ("loop_over_degrees.sh: $TP", loop, ("--set TP=1", "--set TP=2", "--set TP=4"))
    ]
    found = parsed("loop_over_degrees.sh", TP="2")
    assert (values(found)["tensor-model-parallel-size"], found.errors) == (2, ())
    both = "lines 4, 5 train with arguments that differ: say which of them is meant"
    assert errors(parsed("two_trainings.sh")) == [
        ("two_trainings.sh", both, ("--set line_4=true", "--set line_5=true"))
    ]
    assert values(parsed("two_trainings.sh", line_5="true"))["seq-length"] == 4096


def test_variables_without_a_value_are_named_with_the_flags_that_hold_them() -> None:
    found = parsed("positional_parameters.sh")
    assert found.unset == {"data-path": ("2",), "save": ("1",), "load": ("1",)}
    assert found.not_understood == (
        "$@: arguments that the file does not hold: give them with --set 1=...",
        "$2 of --data-path has no value: give it with --set 2=...",
        "$1 of --save, --load has no value: give it with --set 1=...",
    )
    given = parsed("positional_parameters.sh", _1="out", _2="data", _3="2", _4="--fp8-format", _5="hybrid")
    assert (values(given)["tensor-model-parallel-size"], values(given)["fp8-format"]) == (2, "hybrid")
    assert (given.unset, given.not_understood) == ({}, ())


@pytest.mark.parametrize(
    "shape",
    [
        "torchrun pretrain_gpt.py {words}",
        "sh -c 'torchrun pretrain_gpt.py {words}' > log.txt",
        'bash -c "torchrun pretrain_gpt.py {words}" <in.txt >out.txt 2>err.txt',
        "W='{words}'\ntorchrun pretrain_gpt.py $W",
        "W=({words})\ntorchrun pretrain_gpt.py ${{W[@]}}",
        "W=({words})\nsh -c 'torchrun pretrain_gpt.py '\"${{W[*]}}\"",
        "cat <<EOF >job.sh\ntorchrun pretrain_gpt.py {words}\nEOF\nsbatch job.sh",
        "run() {{ torchrun pretrain_gpt.py $@; }}\nrun {words}",
    ],
)
def test_a_placeholder_in_angle_brackets_is_asked_for_and_swallows_no_flag(shape: str) -> None:
    words = "--num-layers 8 --load <CHECKPOINT> --fp16 --merge-file <path to merges>/m.txt --lr <RATE> --split 98,2,0"
    text = shape.format(words=words)
    found = parse(text, "train.sh")
    assert [*found.arguments] == ["num-layers", "load", "fp16", "merge-file", "lr", "split"]
    assert found.arguments["split"].value == "98,2,0"
    assert found.unset == {"load": ("CHECKPOINT",), "merge-file": ("path_to_merges",), "lr": ("RATE",)}
    given = {"CHECKPOINT": "/old", "path_to_merges": "/bpe", "RATE": "1e-4"}
    filled = parse(text, "train.sh", given)
    assert values(filled) == values(found) | {"load": "/old", "merge-file": "/bpe/m.txt", "lr": 1e-4}
    assert not filled.unset
    assert not filled.errors


def test_placeholders_in_yaml_are_asked_for_and_tokens_and_redirections_are_none() -> None:
    content = {"MODEL_ARGS": {"--num-layers": 2, "--load": "<CHECKPOINT>/iter", "--mask-token": "<mask>"}}
    found = parse(json.dumps(content), "case.json")
    assert found.unset == {"load": ("CHECKPOINT",)}
    assert found.arguments["mask-token"].value == "<mask>"
    text = "sort <a.txt >b.txt\n((1<2)) && cat <<EOF >c.txt\nx>y\nEOF\npython pretrain_gpt.py --num-layers 2 <in 2>log"
    assert values(parse(text, "a.sh")) == {"num-layers": 2}
    assert parse("torchrun pretrain_gpt.py --load <模型>", "a.sh").unset == {"load": ("placeholder",)}


def test_a_yaml_key_may_stand_twice_with_one_value_and_two_values_are_an_error_with_both_lines() -> None:
    def found(second: str) -> Parsed:
        return parse(f"MODEL_ARGS:\n  --num-layers: 2\n  --bf16: true\n  --num-layers: {second}\n", "case.yaml")

    assert values(found("2")) == {"num-layers": 2, "bf16": True}
    for other in ("3", "2.0", "true", '"2"', "[2]"):
        with pytest.raises(ConfigErrors) as error:
            found(other)
        assert "the key '--num-layers' has one value in line 2 and another in line 4" in str(error.value)


def test_what_a_command_would_write_has_no_value_and_is_asked_for_by_the_variable_that_holds_it() -> None:
    found = parsed("what_the_machine_knows.sh")
    assert (values(found)["num-attention-heads"], values(found)["hidden-size"]) == (16, 1024)
    assert found.unset["nproc-per-node"] == ("GPUS",)
    assert found.unset["micro-batch-size"] == ("MBS",)
    assert found.unset["load"] == ("ROOT", "line_9")
    assert "line 7 reads $ROOT/settings.sh, which is not read here" in found.not_understood
    ways = "--set line_9=true or --set line_9=false"
    assert f"the condition in line 9 decides --load and asks the machine: {ways}" in found.not_understood
    assert not found.errors


def test_the_last_of_a_repeated_flag_holds_and_that_is_said() -> None:
    found = parsed("repeated_flags.sh")
    assert (values(found)["lr"], values(found)["train-iters"]) == (3e-4, 200)
    assert found.arguments["init-method-std"].value == [0.02, -1]
    assert found.not_understood == (
        "--lr is given before as well (1e-4): the last, as in Megatron-LM, holds",
        "--train-iters is given before as well (100): the last, as in Megatron-LM, holds",
    )


def test_tools_and_heredocs_before_the_training_are_none() -> None:
    found = parsed("steps_before_the_training.sh")
    assert not {"input", "workers", "model-type", "loader"} & found.arguments.keys()
    assert (found.program, values(found)["deepspeed-config"]) == ("pretrain_gpt.py", "ds_config.json")
    launch = {key: argument.value for key, argument in found.launcher_arguments.items()}
    assert launch == {"nnodes": 1, "nproc-per-node": 4}


def test_a_loop_builds_a_list_and_functions_hand_words_on() -> None:
    data = values(parsed("loop_that_builds_a_list.sh"))["data-path"]
    assert data == [1.0, "/data/books_document", 1.0, "/data/code_document", 1.0, "/data/web_text_document"]
    found = parsed("functions_and_locals.sh")
    assert (values(found)["num-attention-heads"], found.launcher_arguments["nproc-per-node"].value) == (16, 4)
    assert values(parsed("command_in_a_variable.sh"))["distributed-backend"] == "nccl"


def test_a_functional_test_keeps_lists_flags_not_given_and_its_other_keys() -> None:
    found = parsed("functional_test.yaml")
    assert values(found)["recompute-modules"] == ["core_attn", "mlp"]
    assert values(found)["train-iters"] == 50
    assert found.unset == {"data-path": ("DATA_PATH",)}
    assert found.not_given == {"--log-memory-to-tensorboard": False, "--ckpt-step": None}
    assert found.other_keys["ENV_VARS.CUDA_DEVICE_MAX_CONNECTIONS"] == 1
    assert found.other_keys["METRICS"] == ["lm loss", "num-zeros"]
    given = parsed("functional_test.yaml", DATA_PATH="/data", STEPS="9")
    assert (values(given)["data-path"], values(given)["train-iters"]) == ("/data/text/my-gpt3_00_text_document", 9)


def test_settings_in_groups_are_no_argument_list() -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse(json.dumps({"a": {"b": 1}}), "a.json")
    assert "this is settings in groups: a, and no argument list of Megatron-LM" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("146_484_375", 146484375),
        ("1e-8", 1e-8),
        (".1", 0.1),
        ("-1", -1),
        ("949,50,1", "949,50,1"),
        ("1_", "1_"),
        ("True", True),
        ('"a b"', "a b"),
        ("1 2", [1, 2]),
        ("", True),
    ],
)
def test_values_are_typed_as_python_types_them(words: str, value: object) -> None:
    assert parse(f"python pretrain_gpt.py --x {words} --num-layers 2", "a.sh").arguments["x"].value == value


def test_a_variable_behind_a_switch_is_no_value_of_it_and_one_dash_is_no_argument() -> None:
    found = parse("python pretrain_gpt.py --bf16 $MORE --lr $LR -x loose --num-layers 2", "a.sh")
    assert (values(found)["bf16"], values(found)["lr"], found.unset) == (True, ["$LR", "loose"], {"lr": ("LR",)})
    assert found.not_understood == (
        "$MORE: arguments that the file does not hold: give them with --set MORE=...",
        "-x: Megatron-LM has no arguments with one dash",
        "$LR of --lr has no value: give it with --set LR=...",
    )


def test_arguments_of_a_branch_that_is_not_taken_are_not_asked_for() -> None:
    branch = 'LOAD=0\nif [ "$LOAD" = 1 ]; then more="--load x"; fi\n# rest="--x"\n'
    found = parse(f'{branch}own="$own --lr 1"\npython pretrain_gpt.py --num-layers 2 $more $own $rest', "a.sh")
    asked = [
        f"${name}: arguments that the file does not hold: give them with --set {name}=..." for name in ("own", "rest")
    ]
    assert list(found.not_understood) == asked


def test_a_parenthesis_without_quotes_among_words_is_an_error_with_its_line() -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse("A=1\npython pretrain_gpt.py --window-size (128,0) --num-layers 4", "a.sh")
    rule = "this is not shell text: '(' among the words of a command stands in quotes (line 2)"
    assert [error.rule for error in caught.value.errors] == [rule]


def test_a_given_name_that_the_file_does_not_have_is_an_error_with_the_nearest() -> None:
    found = parse("TP=2\npython pretrain_gpt.py --num-layers $TP", "a.sh", {"TPP": "4"})
    assert errors(found) == [("a.sh: --set TPP", "the file has no such variable", ("--set TP=...",))]


def test_the_command_asks_for_a_deciding_variable_and_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "branch_that_asks.sh")
    assert main(["import", "megatron", path, "--json"]) == 2
    asked = json.loads(capsys.readouterr().out)["errors"]
    assert any(error["path"] == f"{path}: $1" and "--set 1=13b" in error["way_out"] for error in asked)
    assert main(["import", "megatron", path, "--set", "1=13b", "--json", "--partial"]) == 0
    assert "model.hidden_size=5120" in json.loads(capsys.readouterr().out)["import"]["overrides"]
