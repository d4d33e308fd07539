"""Cases of command lines, and of recipes that they name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fuzz import mutation
from benchmarks.fuzz.case import Case
from launcher.base.package import shipped
from launcher.config.catalog import Catalog
from launcher.config.recipes import literal
from launcher.planner.keys import SEARCHED
from launcher.spec.parse import kinds

_SHELL = ("cluster.setup", "cluster.modules", "script")
"""Keys whose values are shell lines, or the program itself, by what they mean."""


def draw(chance: random.Random) -> Case:
    """A command line of ``check`` or ``show``, without a recipe."""
    words = [_word(chance) for _ in range(chance.randint(0, 6))]
    return Case(source="words", words=_command(chance, words))


def draw_recipe(chance: random.Random) -> Case:
    """A shipped recipe with changes, named by a command line or by ``recipe``."""
    recipe = _mutated(chance, chance.choice(_recipes()))
    files = {"recipes/fuzzed.yaml": recipe}
    if chance.random() < 0.3:
        verb = chance.choice((("list",), ("show", "fuzzed"), ("diff", "fuzzed", "fuzzed")))
        return Case(source="recipes", words=("recipe", *verb, *_json(chance)), files=files)
    words = [*(_word(chance) for _ in range(chance.randint(0, 3))), "recipe=fuzzed"]
    return Case(source="recipes", words=_command(chance, words), files=files)


_WORLD = ("model=tiny", "cluster.nodes=1", "cluster.gpus_per_node=2")
"""Two GPUs, on which a search is done at once whatever else is said."""

_ENGINES = ("parallel=fsdp", "parallel=ddp", "parallel=zero1", "parallel=zero3", "backend=megatron")
_SMALL = ("0", "1", "2", "3", "4", "8", "1,2", "2,3,x", "null", "true", "none", "full", "cpu", "1" * 40)
_SEVERAL = ("parallel.tensor=1,2", "parallel.pipeline=range(1,3)", "zero.stage=2,3", "parallel=fsdp,ddp", "model=1b,7b")


def draw_plan(chance: random.Random) -> Case:
    """A question of ``plan`` about two GPUs, or ``plan=best`` in a command line of ``check``."""
    words = [_word(chance) for _ in range(chance.choice((0, 0, 1, 2, 4)))]
    words += [f"{chance.choice(SEARCHED)}={chance.choice(_SMALL)}" for _ in range(chance.choice((0, 1, 1, 2)))]
    words += chance.sample(_SEVERAL, chance.choice((0, 0, 0, 1, 2)))
    batch = (f"train.global_batch_size={chance.choice((2, 4, 7))}", "train.micro_batch_size=1")
    words += ["hardware=h100_80g", chance.choice(_ENGINES), *batch, *_WORLD]
    if chance.random() < 0.2:
        words = [*words, chance.choice(("plan=best", "plan=best", f"plan={mutation.value(chance)}"))]
        return Case(source="plan", words=("check", *words, *_json(chance), "--no-native"))
    return Case(source="plan", words=("plan", *words, *_json(chance)))


def _command(chance: random.Random, words: Sequence[str]) -> tuple[str, ...]:
    verb = chance.choice(("check", "show"))
    return (verb, *words, *_json(chance), *(("--no-native",) if verb == "check" else ()))


def _json(chance: random.Random) -> tuple[str, ...]:
    return ("--json",) if chance.random() < 0.3 else ()


def _word(chance: random.Random) -> str:
    groups, keys = _catalog().groups, _keys()
    if chance.random() < 0.5:
        group = chance.choice(sorted(groups))
        return f"{group}={chance.choice([*groups[group], mutation.value(chance)])}"
    if chance.random() < 0.4:
        texts = [key for key in keys if key not in _SHELL and kinds()[key] in (str, str | None)]
        return f"{chance.choice(texts)}={literal(chance.choice(mutation.HOSTILE))}"
    key = chance.choice([*keys, chance.choice(keys)[:-1], "", "+x.y", "backend.extra.x", "~model"])
    return f"{key}={mutation.value(chance)}"


def _mutated(chance: random.Random, recipe: str) -> bytes:
    if chance.random() < 0.5:
        return mutation.text(chance, recipe.encode())
    content: dict[str, Any] = yaml.safe_load(recipe)
    for _ in range(chance.randint(1, 3)):
        section = chance.choice(("choose", "set", "sweep"))
        key = chance.choice(sorted(_catalog().groups) if section == "choose" else _keys())
        value = chance.choice([
            mutation.value(chance),
            chance.randint(-2, 10**6),
            [mutation.value(chance)],
            None,
            {"a": 1},
        ])
        content.setdefault(section, {})[key] = value
    return yaml.safe_dump(content).encode()


@lru_cache
def _catalog() -> Catalog:
    return Catalog(folder=Path("/nonexistent"))


@lru_cache
def _keys() -> list[str]:
    return sorted(kinds())


@lru_cache
def _recipes() -> list[str]:
    return [path.read_text() for path in sorted(shipped("recipes").glob("*.yaml"))]
