"""Scripts that make the tables of ``launcher/speed`` from measured kernels and collectives."""
