"""The job: what is started on a node, as frozen data, and the torchrun command around a worker."""
