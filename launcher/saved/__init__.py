"""Checkpoints on disk, as planning and training see them: which there are, and what each says of itself."""
