"""Chat templates write what transformers writes, and what the assistant says is found exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from launcher.base.errors import DataError
from launcher.data.chat import Conversation, conversation
from launcher.data.rendering import writer, written
from launcher.data.template import Template, fingerprint, lacks_own, shipped, template
from launcher.spec.training import DataSpec
from tests.support.chat import CHATML, turns, write_tokenizer
from tests.support.helpers import composed_once

TALK = Conversation(turns("2+2?", "4", "sure?", "yes", system="be brief")["messages"], row=3)
FORGETS = (
    "{% for m in messages %}[{{ m.role }}]{% if not loop.last and m.role == 'assistant' %}(gone){% else %}"
    "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""It shortens what the assistant has said before, as templates of reasoning models do."""


def data(**changed: object) -> DataSpec:
    return replace(composed_once("data=chat", "data.path=a.jsonl").data, **changed)  # type: ignore[arg-type]


def trained(writer: Template, train_on: str = "assistant", conversation: Conversation = TALK) -> list[str]:
    written = writer.written(conversation, train_on)
    assert written.trained is not None
    return [written.text[start:end] for start, end in written.trained]


ENDS = {
    "alpaca": "\n\n",
    "chatml": "<|im_end|>",
    "gemma": "<end_of_turn>",
    "llama3": "<|eot_id|>",
    "mistral": "\n\n",
    "phi": "<|end|>",
    "plain": "\n\n",
    "qwen": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "vicuna": "\n\n",
    "zephyr": "\n\n",
}
"""How an answer ends in each shipped template, without an end-of-text token."""


@pytest.mark.parametrize("name", ENDS)
def test_a_shipped_template_encloses_what_the_assistant_says_and_its_end(name: str) -> None:
    end = ENDS[name]
    writer = template(data(template=name))
    thoughts = "<think>\n\n</think>\n\n" if name == "qwen3" else ""
    assert [answer.lstrip() for answer in trained(writer)] == [f"4{end}", f"{thoughts}yes{end}"]
    assert [answer.lstrip() for answer in trained(writer, "last")] == [f"{thoughts}yes{end}"]
    assert writer.written(TALK, "all").trained is None
    assert "\ufdd0" not in writer.written(TALK, "all").text
    assert "be brief" in writer.written(TALK, "all").text


def test_every_shipped_template_is_tested() -> None:
    assert shipped() == sorted(ENDS)


def test_alpacas_words_stand_around_the_columns_of_a_row_in_the_template_alone_or_inside_another() -> None:
    row = {"instruction": "Add", "input": "2 2", "output": "4"}
    pair, lone = conversation(row, 1, None), conversation({"instruction": "Rest", "output": "ok"}, 1, None)
    asked = "### Instruction:\nAdd\n\n### Input:\n2 2\n\n### Response:\n"
    text = template(data(template="alpaca")).written(pair, "all").text
    assert text.startswith("Below is an instruction that describes a task, paired with an input")
    assert text.endswith(f"request.\n\n{asked}4\n\n")
    text = template(data(template="alpaca")).written(lone, "all").text
    assert text.endswith("completes the request.\n\n### Instruction:\nRest\n\n### Response:\nok\n\n")
    inside = template(data(template="alpaca+llama3"))
    assert f"{asked.strip()}<|eot_id|><|start_header_id|>assistant" in inside.written(pair, "all").text
    assert trained(inside, conversation=pair) == ["4<|eot_id|>"]
    assert template(data(template="llama3")).written(pair, "all").text.count("Add\n\n2 2<|eot_id|>") == 1
    assert fingerprint(data(template="alpaca+llama3")) != fingerprint(data(template="llama3"))


def test_without_generation_blocks_turns_are_found_by_the_beginnings_of_the_conversation(tmp_path: Path) -> None:
    writer = template(data(tokenizer=str(write_tokenizer(tmp_path))))
    assert trained(writer) == ["4<|im_end|>\n", "yes<|im_end|>\n"]
    assert trained(writer, "last") == ["yes<|im_end|>\n"]


def test_the_text_is_that_of_transformers(tmp_path: Path) -> None:
    odd = (
        "{%- set ns = namespace(n=0) %}{% for m in messages %}\n  {% set ns.n = ns.n + 1 %}\n{{ ns.n }}{{ m | tojson }}"
        + (
            "{% if m.role == 'assistant' %}{% generation %} {{- m.content }}{{ eos_token }}"
            "{% endgeneration %}{% endif %}"
            "{% if ns.n > 3 %}{% break %}{% endif %}{% endfor %}"
        )
    )
    for place, text in enumerate((CHATML, odd)):
        folder = write_tokenizer(tmp_path / str(place), text)
        words = transformers.AutoTokenizer.from_pretrained(folder)
        expected = words.apply_chat_template(list(TALK.messages), tokenize=False)
        assert template(data(tokenizer=str(folder))).written(TALK, "all").text == expected
    assert trained(template(data(tokenizer=str(folder)))) == ["4<|end|>"]


def test_a_template_stands_in_the_configuration_or_in_a_file_of_its_own(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "t", None)
    assert lacks_own(data(tokenizer=str(folder)))
    assert template(data(tokenizer=str(folder))).name == "the template plain"
    assert trained(template(data(tokenizer=str(folder)))) == ["4<|end|>", "yes<|end|>"], "eos_token is the tokenizer's"
    content = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": CHATML}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**content, "chat_template": named}))
    found = template(data(tokenizer=str(folder)))
    assert (found.text, found.name) == (CHATML, f"the chat template of data.tokenizer={folder}")
    assert not lacks_own(data(tokenizer=str(folder)))
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}")
    assert template(data(tokenizer=str(folder), template=str(own))).written(TALK, "all").text == "be brief"
    assert fingerprint(data(template=str(own))) == ["{{ messages[0].content }}", {}]


def test_a_template_that_rewrites_the_beginning_is_refused_but_for_the_last_turn(tmp_path: Path) -> None:
    own = tmp_path / "forgets.jinja"
    own.write_text(FORGETS)
    writer = template(data(template=str(own)))
    with pytest.raises(DataError) as caught:
        writer.written(TALK, "assistant")
    assert str(caught.value) == (
        f"data.template={own}: row 3: the template {own} renders the start of a conversation differently "
        "when more follows, so the start and end of turn 3 are unknown; "
        "try data.template=chatml or data.template=plain or data.train_on=last"
    )
    assert trained(writer, "last") == ["yes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('no system') }}", "row 3: {} fails: TemplateError: no system; try data.template=chatml"),
        ("{{ messages[9].content }}", "row 3: {} fails: UndefinedError"),
        ("{{ messages.append(1) }}", "row 3: {} fails: SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "row 3: {} fails: SecurityError"),
        ("{% set n = namespace(__class__=1) %}", "row 3: {} fails: SecurityError: a template cannot set '__class__'"),
        ("{% for m in messages %}", "{} is not a Jinja template: TemplateSyntaxError"),
    ],
)
def test_a_template_that_fails_is_an_error_with_the_row(text: str, message: str, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(text)
    with pytest.raises(DataError) as caught:
        template(data(template=str(own))).written(TALK, "all")
    assert message.format(f"the template {own}") in str(caught.value)
    assert "; try data.template=chatml or data.template=plain" in str(caught.value)


def test_a_template_that_is_nowhere_names_those_that_are_shipped() -> None:
    with pytest.raises(
        DataError, match=r"data.template=nowhere: it is neither a shipped template nor a readable file: No such"
    ):
        template(data(template="nowhere"))


def test_tools_are_not_dropped_by_a_template_without_words_for_them() -> None:
    called = Conversation([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}], row=1)
    for name in shipped():
        with pytest.raises(DataError, match="it has no words for tools"):
            template(data(template=name)).written(called, "assistant")


def test_noncharacters_of_a_message_are_never_taken_for_marks() -> None:
    with pytest.raises(DataError, match="row 1: its text contains the noncharacters U\\+FDD0 or U\\+FDD1"):
        template(data(template="plain")).written(Conversation(turns("\ufdd0", "b")["messages"], 1), "assistant")


THINKS = (
    "{% for m in messages %}{{ m.content }}{{ sep_token }}{% endfor %}"
    "{% if enable_thinking is false %}<none>{% endif %}"
)


def test_what_a_template_is_told_is_written_as_transformers_does_it_and_makes_other_token_ids(tmp_path: Path) -> None:
    folder, told = write_tokenizer(tmp_path / "told"), {"enable_thinking": False, "sep_token": "|"}
    own = data(tokenizer=str(folder), template=THINKS, template_values=told)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    expected = words.apply_chat_template(TALK.messages, chat_template=THINKS, tokenize=False, **told)
    assert expected.endswith("|<none>")
    assert template(own).written(TALK, "all").text == expected
    assert [written(each).text for each in writer(own).outcomes([TALK], "all")] == [expected]
    assert fingerprint(own) != fingerprint(replace(own, template_values=None))
