"""PyTorch's FSDP2 and DDP in the job, with tensor, pipeline and context parallelism."""
