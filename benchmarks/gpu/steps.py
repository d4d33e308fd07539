"""How many steps a row trains."""

WARM_UP = 3
"""Steps whose time does not count: memory is followed in the first two, and clocks rise."""

STEPS = WARM_UP + 5
