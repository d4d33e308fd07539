"""The search for layouts: the fastest one that fits, among all that the command line leaves open.

``question`` reads the words: what is fixed, what is assumed, which engines may answer. ``space`` enumerates the layouts
of an engine, ``search`` finds the best of them by branch and bound, ``planning`` assembles the answer. Nothing is
started: ``judge`` applies the pre-flight's rules and the memory and speed models.
"""
