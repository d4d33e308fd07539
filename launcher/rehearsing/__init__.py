"""``launch rehearse``: one rank of a run, measured alone on one device and compared with its estimate.

``choice`` selects the ranks and the depths to build, ``device`` the device; ``process`` starts the worker as that rank
(``python -m launcher.worker.rehearse``), ``comparison`` compares its measurements with the estimate of exactly what was
built, and extrapolates from two depths. ``rehearse`` does all of this, here or in a Slurm job (``python -m
launcher.rehearsing``), and ``result`` stores the answer as evidence for the run.
"""
