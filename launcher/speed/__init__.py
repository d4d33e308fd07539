"""How long a step takes: terms of seconds, counted as memory is."""
