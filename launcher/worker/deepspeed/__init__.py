"""The worker of DeepSpeed: ZeRO 0 to 3, tensor parallelism, pipeline stages and Ulysses."""
