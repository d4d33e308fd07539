"""The worker of Megatron-LM: its own training loop, wrapped by the launcher, on GPUs and on the CPU."""
