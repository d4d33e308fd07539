"""Hugging Face models: settings of ``model`` from a ``config.json`` in a folder, on the Hub or at a path."""
