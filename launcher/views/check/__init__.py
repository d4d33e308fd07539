"""The pre-flight's answer: text, table, page and plots of ``launch check``."""
