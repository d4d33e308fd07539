"""The actions behind the commands and the Python API: frozen requests in, objects out; nothing is printed here."""
