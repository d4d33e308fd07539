"""Rules that belong to no parallel axis: one module a subject, found by its file's name.

Each offers ``check(spec)``, what is wrong, and may offer ``warnings(spec)``, what runs but bites.
"""
