"""Sweeping: the points of a sweep, the choice of those to try, and the table of their results."""
