"""The structure of a model of any ``transformers`` class, found by building it on the meta device."""
