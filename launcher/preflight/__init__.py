"""The pre-flight: a run assessed, its verdict, the ways out, its trace and its plan, with nothing started."""
