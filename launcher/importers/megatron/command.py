"""The training command of a shell script: which of its commands trains, and which of its words are whose.

Of ``srun ... torchrun --nnodes 2 pretrain_gpt.py --num-layers 32`` the words behind the program are Megatron-LM's,
those of torchrun and of Slurm that say how many processes there are the launcher's, and the others nobody's here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.builtins import SHELLS, TAKE_SCRIPTS
from launcher.importers.megatron.shell.follower import Command, Decision, Script

_TRAINING = re.compile(r"train|finetun|fine_tun|sft|(^|_)rl(_|\b)|distill", re.IGNORECASE)
_TOOL = re.compile(
    r"preprocess|convert|merge|infer|server|generat|download|tokeniz|util|setup|test_|plot|sample|export|zero_to|prepar"
    r"|process_|report|loader|saver|split_|count_|trace|wait_|check_",
    re.IGNORECASE,
)
_SIZES = re.compile(r"--(num[-_]layers|hidden[-_]size|micro[-_]batch[-_]size|tensor[-_]model[-_]parallel[-_]size)\b")
_FLAG = re.compile(r"--[A-Za-z]")
_STARTERS = re.compile(r"(torchrun|deepspeed|ds|accelerate|python[\d.]*|ipexrun)\Z")
_STARTING_MODULES = re.compile(r"torch\.distributed\.|torchrun|accelerate\.|deepspeed\.launcher")
_SBATCH = re.compile(r"^#SBATCH[ \t]+(.+)$", re.MULTILINE)
_OF_SLURM = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "nnodes"),
    **dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), "nproc-per-node"),
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
}
_MOST_HINTS = 8  # Ways out in one message.
_MOST_LISTS = 100  # Variables that are compared with one another, which takes a time that grows with their square.

_OF_TORCHRUN = """
    node-rank master-addr master-port rdzv-id rdzv-backend rdzv-endpoint ntasks-per-node ntasks n max-restarts hostfile
    standalone log-dir tee redirects gpus gpus-per-task G monitor-interval local-ranks-filter
"""
LAUNCHER = {
    **dict.fromkeys(("nnodes", "num-nodes", "nodes", "N"), "nnodes"),
    **dict.fromkeys(("nproc-per-node", "num-gpus", "gpus-per-node", "gres"), "nproc-per-node"),
    **{name: name for name in _OF_TORCHRUN.split()},
}
"""Arguments of torchrun, deepspeed and Slurm by name with dashes, and torchrun's name for the same."""


@dataclass(frozen=True, slots=True)
class Training:
    """The words of one training, with marks."""

    words: tuple[str, ...]  # The training program's.
    launch: tuple[str, ...] = ()  # Those before it, of its launcher.
    program: str | None = None  # Its file or module, where it is known.


def trains(words: tuple[str, ...]) -> bool:
    """True if these are the words of a command that is a training."""
    place = _place(words)
    if place is None:
        return any(_STARTERS.match(_base(word)) for word in words) and any(_SIZES.match(word) for word in words)
    program = marks.plain(words[place])
    if _TOOL.search(_base(program)) and not re.match(r"(pre)?train", _base(program)):
        return False
    return bool(_TRAINING.search(_base(program))) or any(_SIZES.match(word) for word in words[place + 1 :])


def _base(word: str) -> str:
    return marks.plain(word).rpartition("/")[2]


def _place(words: tuple[str, ...]) -> int | None:
    for number, word in enumerate(words):
        if word.endswith(".py") and not (number and words[number - 1] in {"--hostfile", "-c"}):
            return number
        is_module = number and words[number - 1] in {"-m", "--module"} and not _STARTING_MODULES.match(word)
        if is_module and any(_STARTERS.match(_base(before)) for before in words[:number]):
            return number
    return None


def _training(words: tuple[str, ...]) -> Training:
    place = _place(words)
    if place is not None:
        return Training(words[place + 1 :], words[:place], _base(words[place]))
    starter = next((number for number, word in enumerate(words) if _STARTERS.match(_base(word))), None)
    if starter is None:
        return Training(words if words[0].startswith("-") else words[1:])
    theirs = {*range(starter + 1), *(starter + number for number in _of_launcher(words[starter:]))}
    launch = tuple(word for number, word in enumerate(words) if number in theirs)
    return Training(tuple(word for number, word in enumerate(words) if number not in theirs), launch)


def _of_launcher(words: tuple[str, ...]) -> Iterator[int]:
    for number, word in enumerate(words):
        name, equals, _ = word.lstrip("-").replace("_", "-").partition("=")
        if word.startswith("-") and name in LAUNCHER:
            yield number
            if not equals and name != "standalone":
                yield number + 1


# The choice between commands.


def choose(script: Script, path: str, given: Mapping[str, str]) -> tuple[Training | None, list[ConfigError]]:
    """The training of a script, and an error where it has several that differ."""
    found = [command for command in script.commands if trains(command.words)]
    answers = {command.line: given.get(f"line_{command.line}") for command in found}
    if "true" in answers.values() and len(set(answers)) > 1:
        found = [command for command in found if answers[command.line] == "true"]
    found = [command for command in found if answers[command.line] != "false"]
    trainings = [_training(command.words) for command in found]
    if not found:
        words = _without_program(script)
        return (_training(words) if words else None), []
    differ = [
        command
        for command, training in zip(found, trainings, strict=True)
        if (training.words, training.program) != (trainings[0].words, trainings[0].program)
    ]
    return trainings[0], [_ambiguous(script, found[0], differ, path)] if differ else []


def _ambiguous(script: Script, first: Command, others: list[Command], path: str) -> ConfigError:
    commands = [first, *others]
    loops = dict(pair for command in commands for pair in reversed(command.loops))
    if loops and len({command.line for command in commands}) == 1:
        name = next(iter(loops))
        values = dict.fromkeys(dict(command.loops).get(name, "") for command in commands)
        rule = f"the loop in which line {first.line} trains has several values, and the arguments differ"
        return ConfigError(f"{path}: ${name}", None, rule, ways_out([name], [f"{name}={value}" for value in values]))
    lines = list(dict.fromkeys(command.line for command in commands))
    numbers = {number for command in commands for number in command.decisions}
    decisions = [script.decisions[number] for number in sorted(numbers) if script.decisions[number].names]
    if decisions:
        effect = f"decides which of the commands in lines {_listed(lines)} trains"
        return decided_by(decisions[:1], path, effect, decisions[0].hints)
    rule = f"lines {_listed(lines)} train with arguments that differ: say which of them is meant"
    return ConfigError(path, None, rule, [f"--set line_{line}=true" for line in lines[:_MOST_HINTS]])


def _listed(lines: Iterable[int]) -> str:
    return ", ".join(map(str, lines))


def decided_by(decisions: list[Decision], path: str, effect: str, hints: Iterable[str] = ()) -> ConfigError:
    """The error of conditions that the same variables decide, or, where there are none, the machine."""
    first = decisions[0]
    lines = sorted({decision.line for decision in decisions})
    line = f"line{'s' * (len(lines) > 1)} {_listed(lines)}"
    if not first.names:
        rule = f"the condition in {line} asks the machine, which is not done here; it {effect}"
        answers = [f"--set line_{first.line}={answer}" for answer in ("true", "false")]
        return ConfigError(f"{path}: {line}", None, rule, answers)
    names = ", ".join(f"${name}" for name in first.names)
    return ConfigError(f"{path}: {names}", None, f"has no value; it {effect} ({line})", ways_out(first.names, hints))


def ways_out(names: Iterable[str], hints: Iterable[str] = ()) -> list[str]:
    """Words to type that give variables a value."""
    found = list(dict.fromkeys(hints))
    return [f"--set {hint}" for hint in found[:_MOST_HINTS]] or [f"--set {name}=..." for name in names]


def _without_program(script: Script) -> tuple[str, ...]:
    bare = [word for command in script.commands if _FLAG.match(command.words[0]) for word in command.words]
    others = [
        command.words
        for command in script.commands
        if _base(command.words[0]) not in TAKE_SCRIPTS | SHELLS and any(map(_FLAG.match, command.words))
    ]
    sized = [words for words in others if any(map(_SIZES.match, words))]
    if bare:
        return tuple(bare)
    return (sized or [_of_variables(script)])[-1] or (others or [()])[-1]


def _of_variables(script: Script) -> tuple[str, ...]:
    values = [value.split() if isinstance(value, str) else value for value in script.variables.values()]
    held = [tuple(words) for words in values if isinstance(words, list | tuple)]
    lists = [words for words in held if any(map(_FLAG.match, words))][-_MOST_LISTS:]
    joined = [" ".join(words) for words in lists]
    alone = [not any(text in other and text != other for other in joined) for text in joined]
    return tuple(word for words, is_alone in zip(lists, alone, strict=True) if is_alone for word in words)


# What starts the program.


def batch_words(text: str) -> tuple[str, ...]:
    """The words of ``#SBATCH`` lines."""
    return tuple(word for match in _SBATCH.finditer(text) for word in match[1].partition(" #")[0].split())


def batch_environment(words: Iterable[str]) -> dict[str, str]:
    """Variables that Slurm sets for a job with these words."""
    found = {name: marks.plain(value).rpartition(":")[2] for name, _, value in launcher_pairs(words)}
    return {variable: found[name] for variable, name in _OF_SLURM.items() if found.get(name, "").isdecimal()}


def launcher_pairs(words: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Arguments of launchers among words: torchrun's name, the spelling, and the value with its marks."""
    pending: tuple[str, str] | None = None
    for word in words:
        if pending and not re.match(r"-[A-Za-z-]", word):
            yield (*pending, word)
            pending = None
            continue
        if pending:
            yield (*pending, "")
        spelling, equals, _ = marks.plain(word).lstrip("-").partition("=")
        name = spelling.replace("_", "-")
        known = word.startswith("-") and name in LAUNCHER
        pending = (LAUNCHER[name], spelling) if known and not equals else None
        if known and equals:
            yield LAUNCHER[name], spelling, word.partition("=")[2]
    if pending:
        yield (*pending, "")
