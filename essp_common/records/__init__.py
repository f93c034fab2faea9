"""Records: many small labelled items (images, features) in a few large files, read in one pass and drawn at random.

`chunk.py`: a file of records. `versions.py`: the contents of a data set, version by version. `writer.py`: new versions.
`reader.py`: records by their place, in ascending order of bytes. `sampler.py`: which records make a batch; pure.

After OneAccess (Kakaraparthi, Venkatesh, Poondla: "OneAccess: Concurrent Data Access Layer for Analytics").
"""
