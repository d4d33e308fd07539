"""What one rank of one pipeline stage holds, counted: shares, weights, saved tensors and number formats."""
