"""``python -m launcher.worker.trace``: allocations of a run, by the workers' own code under fake tensors.

No GPU and no peers: tensors have shapes and no values (``FakeTensorMode``), and the process group answers at once
(torch's "fake" backend). Every storage that the code makes, resizes and drops is followed, and the sequence is played
back through a model of torch's caching allocator.
"""
