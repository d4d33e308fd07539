"""Rules that belong to no parallel axis: one module a subject, found by its file's name.

Each offers ``check(spec)``, which yields errors, and may offer ``warnings(spec)``, which yields pitfalls of a valid
run.
"""
