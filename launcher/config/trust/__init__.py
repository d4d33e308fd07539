"""Whose a file is, what of it acts on this machine, and which of them the user trusts."""
