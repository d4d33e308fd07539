"""The data of a run before any framework sees them: files, their formats, rows, tokens.

Planning opens data here (``launch check`` looks at them), and the worker reads them by the same functions, so what was
judged is what is trained on. Data that cannot be used raise :class:`~launcher.data.unusable.Unusable`, with the
setting, the reason and the way out. Nothing here imports torch.
"""
