"""Actions of the verbs and of the Python API: frozen requests in, objects out; nothing is printed here."""
