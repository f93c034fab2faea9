"""Repeats the experiments of the papers behind ESSP: `python -m benchmarks.papers NAME`.

__main__.py      the command
study.py         parts and steps, and the JSON file of each part, from which a run is resumed
document.py      tables and figures of a page, drawn from these files alone
machine.py       where something was measured, and processor time with child processes

essp/            its own paper
oneaccess/       records: "OneAccess"
check_qzp/       checkpoints: "Check-QZP"
io/              "Characterizing Deep-Learning I/O Workloads"
"""
