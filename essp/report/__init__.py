"""The report of a finished training job: pictures, figures, and a page that holds all of it.

    facts.py      what the job's output store says of the run
    plots.py      curves and confusion matrix
    samples.py    clips of the evaluated split, with what was made of them
    page.py       report.html, self-contained
    folder.py     `write_report`: all of it into `report/`

Everything is made from the output store, so a report can be made again at any time, of a run in any mode.
"""
