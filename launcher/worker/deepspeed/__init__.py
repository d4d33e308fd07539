"""DeepSpeed in the job: ZeRO 0 to 3, tensor parallel parts, pipeline stages and Ulysses."""
