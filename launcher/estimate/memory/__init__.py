"""The memory estimate: one public function per tensor class, put together by ``estimate``.

This face is empty: the worker imports the names of phases from ``moments``, and nothing else of the model.
"""
