"""One file of measured speeds as rows, an adapter a file, found by the data file's name."""
