"""Scripts that make the tables of ``launcher/estimate/speed`` from measured kernels and collectives."""
