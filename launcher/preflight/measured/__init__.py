"""Measured runs, kept in a file of the user or of a cluster, as the constant of later estimates.

``file`` is the file, ``constants`` what follows from its rows, and ``known`` what a command asks.
``launcher.rundir.measured_run`` enters a run when it has finished.
"""
