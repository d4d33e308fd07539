"""nanotron, which is only checked: its terms, and its allocations in their order for the allocator's replay.

``nanotron`` in a source is the package of that name on PyPI, version 0.4, where nothing else is said; what differs in
the runs of February 2025 and was read off them is marked ``[inferred]``.
"""
