"""How near a rank that is rehearsed alone comes to the same rank of the real run."""
