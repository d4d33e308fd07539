"""What a model of any class of ``transformers`` is made of, found by building it without memory."""
