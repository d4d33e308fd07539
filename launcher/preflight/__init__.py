"""The pre-flight check: assessment, verdict, ways out, trace and plan of a run, without starting anything."""
