"""Measured runs, kept in a user's or a cluster's file, which calibrate later estimates.

``file`` reads and writes the file, ``constants`` derives constants from its rows, and ``known`` serves them to
commands. ``launcher.rundir.measured_run`` adds a run when it has finished.
"""
