"""The job as frozen data: a node's command, files and environment, and the torchrun command around a worker."""
