"""The embedded composition: every service in one process, built by the same functions as each `main.py`."""
