"""Tests of the backend trl."""
