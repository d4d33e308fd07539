"""One module per parallel axis: ``check(spec)`` finds errors, ``apply(view, spec)`` narrows a rank's shares."""
