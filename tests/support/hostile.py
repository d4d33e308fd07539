"""Hostile files that act as soon as they are imported or unpickled, and leave a trace."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

MODULES = ("argparse", "json", "torch", "numpy", "submitit", "transformers", "sitecustomize", "launcher")
"""Module names that all our processes import, and that a working folder may contain."""

MARK = "hostile_code_ran"


def plant(folder: Path, *modules: str) -> Path:
    """Put modules into a folder that end the process importing them; the file that exists once one was imported."""
    mark = folder / MARK
    code = f"open({str(mark)!r}, 'a').write(__name__ + '\\n')\nraise SystemExit('imported from the working folder')\n"
    for module in modules or MODULES:
        if module == "launcher":
            (folder / module).mkdir()
            (folder / module / "__init__.py").write_text(code)
        else:
            (folder / f"{module}.py").write_text(code)
    return mark


@dataclass(frozen=True)
class Pickle:
    """An object whose pickle creates a file when it is loaded."""

    mark: Path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Have the pickle call a function when it is loaded, as an attacker's would."""
        return os.system, (f"touch {shlex.quote(str(self.mark))}",)
