"""A declarative launcher for distributed LLM training: compose, check, estimate, translate, launch, record."""

__version__ = "0.1.0"
