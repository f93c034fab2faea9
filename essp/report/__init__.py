"""The report of a finished training job: pictures, figures, and a page that contains all of it.

    facts.py      the facts of the run in the job's output store
    plots.py      curves and confusion matrix
    samples.py    clips of the evaluated split, with their features
    page.py       report.html, self-contained
    folder.py     `write_report`: writes everything into `report/`

A report needs only the output store, so it can be written again at any time, for runs of any mode.
"""
