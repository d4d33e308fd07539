"""One module a source, named as its data file: ``rows(path) -> Iterator[Row]``."""
