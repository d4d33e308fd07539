"""Runs side by side; it reads run directories and starts nothing."""
