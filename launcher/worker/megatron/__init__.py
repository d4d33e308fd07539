"""Megatron-LM in the job: its own training loop, followed, on the GPU and on the CPU."""
