"""The search for layouts: of all that the words leave open, what trains fastest and fits.

``question`` reads the words: what is fixed, what is assumed, which engines may answer. ``space`` lists the layouts of
an engine, ``search`` finds the best of them by bounds, ``planning`` puts the answer together. Nothing is started here:
``judge`` asks the pre-flight's rules and the models of memory and speed.
"""
