"""Measurements: each tool writes its figures with the machine, the versions and the commit that made them."""
