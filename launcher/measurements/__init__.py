"""Measured runs, kept in a file of the user or of a cluster, as the constant of later estimates.

``row`` is one run, ``file`` the file, ``constants`` what follows from its rows for a run that is to be judged.
``launcher.rundir.measuring`` enters a run when it has finished.
"""
