"""The model that is trained: its modules, first values, weights, adapters, recomputation, optimizers and export."""
