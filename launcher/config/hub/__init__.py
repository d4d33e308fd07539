"""Models of Hugging Face: a ``config.json`` as a model of ours, from a folder, the Hub or a path."""
