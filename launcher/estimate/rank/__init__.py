"""One rank of one pipeline stage, counted: shares, weights, saved tensors and number formats."""
