"""Print a shell completion script for `launch`: groups, keys, their values, verbs, options, runs, recipes.

launch completion bash     in ~/.bashrc: eval "$(launch completion bash)"
launch completion zsh      in ~/.zshrc:  eval "$(launch completion zsh)"
launch completion fish     > ~/.config/fish/completions/launch.fish
"""

import argparse

from launcher.base.package import FOLDER
from launcher.commands._options import add_shared, print_answer

SHELLS = ("bash", "zsh", "fish")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    add_shared(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    script = (FOLDER / "cli" / "completion" / f"launch.{options.shell}").read_text()
    document = {"schema": 1, "completion": {"shell": options.shell, "script": script}}
    print_answer(options, lambda: document, lambda: script.removesuffix("\n"))
    return 0
