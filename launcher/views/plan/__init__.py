"""The planner's answer: text, notebook cell and plot of ``launch plan``."""
