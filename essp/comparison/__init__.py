"""Compares finished and unfinished training jobs by what they left in their outputs: settings, curves, figures.

runs.py        reads each output
comparison.py  what differs: pure functions
page.py        the same as a page
curves.py      the curves of one job as a table
"""
