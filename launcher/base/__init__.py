"""The ground: files, errors, units, secrets, this machine and the package itself; no room above is imported here."""
