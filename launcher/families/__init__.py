"""Model families: parameters and saved activations per block, as terms. One module a family."""
