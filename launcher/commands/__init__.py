"""The verbs of ``launch``: one module each with ``arguments(parser)`` and ``run(options) -> exit status``."""
