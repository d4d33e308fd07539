"""The training processes of a job: the only package that imports torch, DeepSpeed or Megatron. Nothing imports it."""
