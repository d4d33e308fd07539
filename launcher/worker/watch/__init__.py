"""What is watched while a run trains: slow ranks, growing memory, and nodes before the first step."""
