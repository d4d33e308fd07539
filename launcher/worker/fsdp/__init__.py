"""The worker of PyTorch FSDP2 and DDP, with tensor, pipeline and context parallelism."""
