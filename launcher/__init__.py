"""A declarative launcher for distributed LLM training: compose, check, estimate, translate, launch, record."""

from launcher.package import __version__

__all__ = ["__version__"]
