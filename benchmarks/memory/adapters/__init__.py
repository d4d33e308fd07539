"""One module per source, named like its data file: ``rows(path) -> Iterator[Row]``."""
