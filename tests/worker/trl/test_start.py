"""The tokenizer of a task has the template that ``data.template`` names, as a check reads it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.data.chat import Conversation
from launcher.data.template import shipped, template
from launcher.data.tokenizer import of_transformers
from launcher.worker.trl import samples, training
from tests.support.chat import turns
from tests.support.helpers import composed_once

TALK = turns("2+2?", "4", "sure?", "yes")["messages"]
END = of_transformers("bytes", ()).eos_token


@pytest.mark.parametrize("name", [*shipped(), "{% for m in messages %}<{{ m.content }}>{% endfor %}"])
def test_rows_are_written_by_the_template_that_is_named(name: str) -> None:
    data = composed_once("task=dpo", "data=rows", "data.path=a.jsonl", f"data.template='{name}'").data
    context: Any = SimpleNamespace(spec=SimpleNamespace(data=data))
    text = training.tokenizer(context).apply_chat_template(TALK, tokenize=False)
    if name != "alpaca":  # Its words are put in where the rows are read.
        expected = template(data).written(Conversation(TALK, row=1), "all").text
        assert text.replace(END, "\n\n").split() == expected.split()
    assert name == "plain" or text != training.tokenizer(_plain()).apply_chat_template(TALK, tokenize=False)


def _plain() -> Any:
    data = composed_once("task=dpo", "data=rows", "data.path=a.jsonl").data
    return SimpleNamespace(spec=SimpleNamespace(data=data))


def test_rows_hold_what_their_template_is_told_where_trl_looks_for_it() -> None:
    from trl.data_utils import apply_chat_template

    words = ("task=dpo", "data=rows", "data.path=a.jsonl", "data.template_values={ends:stop}")
    tokenizer = training.tokenizer(_plain())
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ ends }}"
    row = samples._worded({"messages": TALK}, composed_once(*words).data)
    assert apply_chat_template(row, tokenizer)["text"].endswith("yesstop")
    assert samples._worded({"messages": TALK}, _plain().spec.data) == {"messages": TALK}


_LOADS = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

config = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, vocab_size=8192)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
before, kept, sizes = own(), [], []
for dtype in (torch.bfloat16, torch.float32):
    kept.append(AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype, device_map=None))
    sizes.append((own() - before) / kept[-1].num_parameters())
    before = own()
print(*sizes)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which memory is a process's own")
def test_weights_that_are_loaded_as_they_lie_in_their_file_stay_mapped(tmp_path: Path) -> None:
    """fp32 copies of 16-bit weights take 4 bytes, others nothing, as ``loads`` of the engine's traits has it."""
    words = [sys.executable, "-c", _LOADS, str(tmp_path / "weights")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    mapped, cast = map(float, done.stdout.splitlines()[-1].split())
    assert mapped < 0.2
    assert cast == pytest.approx(4, rel=0.1)
