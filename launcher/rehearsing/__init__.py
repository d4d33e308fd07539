"""``launch rehearse``: one rank of a run, measured alone on one device, beside what the estimate says of it.

``choice`` says which ranks, ``device`` on what, ``depth`` how many layers can be built there; ``process`` starts the
worker as that rank (``python -m launcher.worker.rehearse``), ``comparison`` puts what it measured beside the estimate
of the very thing that was built, and extrapolates from two depths. ``rehearse`` does all of it, here or in a Slurm job
(``python -m launcher.rehearsing``), and ``stored`` keeps the answer as evidence for the run.
"""
