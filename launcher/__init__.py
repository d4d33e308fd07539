"""A declarative launcher for distributed LLM training: compose, check, estimate, translate, launch, record.

``import launcher`` loads nothing else: the functions of the Python API (docs/python.md) come with their first use.
"""
# ruff: noqa: F405

TYPE_CHECKING = False  # Type checkers know the name; ``typing`` itself takes a tenth of the time of a completion.
if TYPE_CHECKING:
    from launcher.api import *  # noqa: F403
    from launcher.base import errors as errors
    from launcher.base.package import __version__ as __version__

__all__ = [
    "Check", "Imported", "Plan", "Rehearsed", "Run", "Sweep", "__version__", "check", "errors", "import_", "plan",
    "rehearse", "run", "show", "submit", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """An exported name of the Python API, whose module is imported when it is asked for."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return import_module("launcher.base.errors")
    return getattr(import_module("launcher.base.package" if name == "__version__" else "launcher.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
