"""One parallel axis each: ``check(spec)`` finds errors, ``apply(view, spec)`` narrows a rank's shares."""
