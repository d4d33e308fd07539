"""One parallel axis each: ``check(spec)`` finds what is wrong, ``apply(view, spec)`` narrows what a rank holds."""
