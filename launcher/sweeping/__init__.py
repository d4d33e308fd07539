"""Sweeping: which points a sweep has, which of them are tried, and the table of what became of them."""
