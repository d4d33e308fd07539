"""``python -m launcher.worker.rehearse``: one rank of a run, alone, with real tensors and real kernels.

A process group answers for the other ranks (:mod:`.world`), the engine is the worker's own, and memory is followed as
in a real run. What is written is ``launcher.job.rehearsal``. Each engine has a module of its backend's name with a
function ``rehearse(rehearsal)``.
"""
