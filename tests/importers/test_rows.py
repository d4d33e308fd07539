"""Rows and templates that other programs write in words of their own: each is written here as it is there."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from launcher.data.chat import conversation, mapped
from launcher.data.rendering import writer, written
from launcher.importers import Imported
from tests.support.helpers import make_spec

ROW = {
    "question": "Q", "response": "R", "system_prompt": "S", "article": "A", "answer": "B", "context": "C",
    "category": "K", "summary": "M", "INSTRUCTION": "I", "RESPONSE": "J", "message_1": "X", "message_2": "Y",
}  # fmt: skip


def text_of(found: Imported, row: dict[str, Any]) -> str:
    one = conversation(mapped(row, found.recipe["set"].get("data.columns")), 1, None, "")
    words = [word for word in found.overrides if word.startswith("data.template=")]
    spec = make_spec("data=chat", "data.path=talk.jsonl", *words)
    return written(next(iter(writer(spec.data).outcomes([one], "assistant")))).text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("alpaca_w_system.load_open_orca", "### System:\nS\n### Human:\nQ\n### Assistant:\nR"),
        (
            "alpaca_w_system.load_open_orca_chatml",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nR",
        ),
        ("orcamini", "### System:\nS\n\n### User:\nQ\n\n### Response:\nR"),
        (
            "context_qa",
            "SYSTEM: Use the following contextual information to concisely answer the question.\n\n"
            "USER: A\n===\nQ\nASSISTANT:B",
        ),
        ("context_qa.load_v2", "Context: C\nQuestion: Q\nAnswer: B"),
        ("summarizetldr", "USER: Summarize the following article as a TL;DR.\nA\nASSISTANT:M"),
    ],
)
def test_rows_of_axolotls_types_are_written_in_its_words(kind: str, text: str) -> None:
    file = f"base_model: mistralai/Mistral-7B-v0.1\nadapter: lora\ndatasets:\n  - {{path: o/d, type: {kind}}}\n"
    found = importlib.import_module("launcher.importers.axolotl").read(file, "a.yaml")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    assert text_of(found, ROW) == text


def test_rows_with_a_label_have_the_columns_of_one_answer() -> None:
    file = "base_model: o/m\nrl: kto\ndatasets:\n  - {path: o/d, type: llama3.intel}\n"
    found = importlib.import_module("launcher.importers.axolotl").read(file, "a.yaml")
    columns = found.recipe["set"]["data.columns"]
    assert columns == {"prompt.system": "system", "prompt.user": "question", "completion.assistant": "completion"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("default", "Human: a\nAssistant:b\nHuman: c\nAssistant:d\n"),
        ("deepseek", "User: a\n\nAssistant:bUser: c\n\nAssistant:d"),
        ("glm4", "[gMASK]<sop><|user|>\na<|assistant|>\nb<|user|>\nc<|assistant|>\nd"),
        (
            "smollm2",
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face.<|im_end|>\n"
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n",
        ),
    ],
)
def test_llama_factorys_templates_are_said_in_its_words(template: str, text: str) -> None:
    file = f"model_name_or_path: o/base\nstage: sft\ndo_train: true\ndataset: lima\ntemplate: {template}\n"
    found = importlib.import_module("launcher.importers.llamafactory").read(file, "a.yaml")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    turns = [{"role": role, "content": word} for role, word in zip(["user", "assistant"] * 2, "abcd", strict=True)]
    assert text_of(found, {"messages": turns}) == text


@pytest.mark.parametrize(
    ("kind", "text", "left"),
    [
        ("llamafactory", "model_name_or_path: o/m\ndo_train: true\ntemplate: qwen3\nenable_thinking: false\n",
         ["enable_thinking"]),
        ("llamafactory", "model_name_or_path: o/m\ndo_train: true\ntemplate: qwen\nenable_thinking: false\n", []),
    ],
)  # fmt: skip
def test_what_a_template_is_told_matters(kind: str, text: str, left: list[str]) -> None:
    found = importlib.import_module(f"launcher.importers.{kind}").read(text, "a.yaml")
    assert [each.key for each in found.left_out if each.matters] == left
