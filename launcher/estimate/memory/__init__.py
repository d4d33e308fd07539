"""The memory estimate: one public function per tensor class, put together by ``estimate``.

It exports nothing: the worker imports the names of phases from ``moments``, and nothing else of the memory model.
"""
