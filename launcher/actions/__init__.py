"""What the verbs and the Python API do: typed requests in, objects out; nothing is printed here."""
