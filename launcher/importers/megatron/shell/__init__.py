"""A reader of shell scripts, which runs nothing: the words that a script hands to the programs that it starts.

``tree`` has the statements, which ``parser`` makes of the text with the help of ``quoting``. ``machine`` follows them
with the variables that the user gives: ``expansion`` puts values in, ``conditions`` answers tests. What a script asks
the machine for (commands, files, the environment) has no value here; such a value is a mark in the text (``marks``),
which says where it comes from, so that it can be asked for where it decides.
"""
