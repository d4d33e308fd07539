"""Completion of the shells: ``launch completion SHELL`` prints a script that asks ``launch`` itself at each Tab.

An answer comes before a person notices, so ``answer`` and ``candidates`` import next to nothing. What only parsers of
the verbs and the schema know is kept in a file by ``vocabulary``; options of groups, recipes, runs and files are looked
up in the folders each time.
"""
