"""Constants of the model of speed, fitted to measured tables of kernels and collectives: one program a table."""
