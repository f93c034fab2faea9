"""Preflight: checks a job before it begins, and collects what its run needs. It only reads.

preflight.py          the entrance
resolve.py            opens what the job names, once: `ResolvedJob`
checks.py             do its settings fit data, model, features and each other: the table `CHECKS`
extraction_checks.py  the same for jobs that write features
advice.py             what is legal but probably a mistake
streams.py            what decoders and extractors compute: sizes of clips, shapes of streams
sizing.py             how large clips can get
budget.py             how many of them the budget has to hold
seeds.py              tries the first work units
model_inputs.py       gives a job with a fused model the inputs of that model
weights.py            the weights that networks start from
output.py             whose output a folder is, and what of it may be continued or removed
place.py              whether the output is a folder of its own
resume.py             where trainers and predictors resume
"""
