"""Rules that belong to no parallel axis: one module per subject, found by its file name.

Each module has ``check(spec)``, which yields errors, and may have ``warnings(spec)``, which yields pitfalls of a
valid run.
"""
