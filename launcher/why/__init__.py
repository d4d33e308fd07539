"""Why a run ended as it did: the cause, its evidence with file and line, and what would help, as text to paste."""
