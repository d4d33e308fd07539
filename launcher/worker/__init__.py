"""What runs inside the job: the only package that imports torch, DeepSpeed or Megatron. Nothing imports it."""
