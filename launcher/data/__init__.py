"""The data of a run before any framework sees it: files, their formats, rows, tokens.

Planning opens data here (``launch check`` samples it), and the worker reads it with the same functions, so what was
checked is what is trained on. Data that cannot be used raises :class:`~launcher.data.unusable.Unusable` with the
setting, the reason and the way out. Nothing here imports torch.
"""
