"""The contents of one rank of a pipeline stage: shares, weights, saved tensors and number formats."""
