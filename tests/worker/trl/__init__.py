"""Tests of the worker that runs TRL."""
