"""Memory of one rank as it is measured: live tensors by pile, layer and phase."""
