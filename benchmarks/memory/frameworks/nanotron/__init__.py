"""nanotron as a backend that is only compared with: its terms, and its allocations in order for the allocator's replay.

``nanotron`` in a source is the package of that name on PyPI, version 0.4, where nothing else is said; what differs in
the runs of February 2025 and was read off them is marked ``[inferred]``.
"""
