"""Recipes of Megatron Bridge in several modules: what is followed from one to another, as text."""

from pathlib import Path

import pytest

from launcher.actions import importing
from launcher.importers import Imported

BASE = """
MODEL = "o/m"
def _small_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("o/other").to_megatron_provider(load_weights=False)
    cfg.train.micro_batch_size = 3
    return cfg
"""
OWN = """
from megatron.recipes.small import MODEL, _small_config
LAYOUT = LETTERS
def one() -> ConfigContainer:
    cfg = _small_config()
    cfg.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_layout = LAYOUT
    cfg.optimizer.optimizer_cpu_offload = OFFLOADS
    cfg.optimizer.optimizer_offload_fraction = 0.0
    return cfg
"""


def one(folder: Path, letters: str, offloads: str = "False", base: str = BASE) -> Imported:
    package = folder / "megatron" / "recipes"
    package.mkdir(parents=True)
    (package / "small.py").write_text(base)
    own = folder / "own.py"
    own.write_text(OWN.replace("LETTERS", letters).replace("OFFLOADS", offloads))
    return importing.read("megatron-bridge", own, {})


def left(found: Imported) -> list[str]:
    return [each.key for each in found.left_out if each.matters]


def test_a_private_recipe_and_a_constant_of_a_module_beside_the_text_are_read(tmp_path: Path) -> None:
    found = one(tmp_path, '"|".join(("E" + "t" * 2, "t" + "L"))')
    assert {"model=o/m", "train.micro_batch_size=3", "parallel.layout=[Ett,tL]"} <= set(found.overrides)
    assert left(found) == []


@pytest.mark.parametrize("letters", ['"|".join(unknown)', '"t" * unknown', 'unknown.join(("Et", "tL"))', '"t" * 20000'])
def test_words_that_are_joined_of_unknown_parts_stay_open(tmp_path: Path, letters: str) -> None:
    assert left(one(tmp_path, letters)) == ["model.pipeline_model_parallel_layout"]


def test_a_share_of_the_states_that_stay_on_the_gpu_is_refused_only_where_others_leave_it(tmp_path: Path) -> None:
    assert "optimizer.optimizer_offload_fraction" in left(one(tmp_path, '"Ett|tL"', offloads="True"))


def test_a_constant_that_no_module_beside_the_text_has_leaves_the_model_open(tmp_path: Path) -> None:
    assert "model.value" in left(one(tmp_path, '"Ett|tL"', base=BASE.replace("MODEL", "OTHER")))


def test_what_is_set_of_an_optimizer_after_the_function_that_makes_it_and_its_schedule_holds(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    lines = [
        "def one() -> ConfigContainer:",
        "    cfg = _pretrain_common()",
        '    cfg.model = AutoBridge.from_hf_pretrained("o/m").to_megatron_provider(load_weights=False)',
        "    optimizer, rates = distributed_fused_adam_with_cosine_annealing(max_lr=9e-5, lr_warmup_iters=7)",
        "    optimizer.lr = 1e-4",
        "    cfg.optimizer = optimizer",
        "    cfg.scheduler = rates",
        "    cfg.optimizer.use_precision_aware_optimizer = True",
        "    cfg.optimizer.exp_avg_dtype = torch.bfloat16",
        "    cfg.optimizer.exp_avg_sq_dtype = torch.bfloat16",
        "    cfg.optimizer.unheard_of = 3",
        "    return cfg",
    ]
    own.write_text("\n".join(lines))
    found = importing.read("megatron-bridge", own, {})
    said = {"optimizer.lr=0.0001", "optimizer.warmup_steps=7", "precision.optimizer_states=bf16"}
    assert said <= set(found.overrides)
    assert left(found) == ["optimizer.unheard_of"]
