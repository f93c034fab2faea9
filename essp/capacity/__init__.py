"""How many workers a job needs, and where the bottleneck is: `essp plan`.

cpu.py          processor time of the parts of a job in this process
measuring.py    runs a job for some seconds: what a clip costs in each part -> `Costs`
setups.py       where a job runs: pools, trainers and cores -> `Setup`
simulation.py   clips through such a setup, event by event -> `Outcome`
limits.py       the capacity of each part, server and link -> `Limit`, the lowest first
report.py       the plan in figures: what is needed, and what it costs
plot.py         the same as a picture
extraction.py   what extracting all frames first would cost: `--against extract`
"""
