"""A declarative launcher for distributed LLM training: compose, check, estimate, translate, launch, record.

``import launcher`` loads nothing else: the functions of the Python API (docs/python.md) come with their first use.
"""

TYPE_CHECKING = False  # Type checkers know the name; ``typing`` itself takes a tenth of the time of a completion.
if TYPE_CHECKING:
    from launcher.api import Check as Check
    from launcher.api import Imported as Imported
    from launcher.api import Plan as Plan
    from launcher.api import Rehearsed as Rehearsed
    from launcher.api import Run as Run
    from launcher.api import Sweep as Sweep
    from launcher.api import check as check
    from launcher.api import import_ as import_
    from launcher.api import plan as plan
    from launcher.api import rehearse as rehearse
    from launcher.api import run as run
    from launcher.api import show as show
    from launcher.api import submit as submit
    from launcher.api import sweep as sweep
    from launcher.base import errors as errors
    from launcher.base.package import __version__ as __version__

__all__ = [
    "Check",
    "Imported",
    "Plan",
    "Rehearsed",
    "Run",
    "Sweep",
    "__version__",
    "check",
    "errors",
    "import_",
    "plan",
    "rehearse",
    "run",
    "show",
    "submit",
    "sweep",
]


def __getattr__(name: str) -> object:
    """Import the module that has an exported name when it is asked for."""
    from importlib import import_module

    if name == "errors":
        return import_module("launcher.base.errors")
    if name in __all__:
        return getattr(import_module("launcher.base.package" if name == "__version__" else "launcher.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
