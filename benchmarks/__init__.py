"""Measurements: each writes its figures beside the machine, the versions and the commit that made them."""
