"""Trust: where a file comes from, which of its settings have side effects on this machine, and what the user trusts."""
