"""Records: many small items with a label (images, features) in few large files, read in one pass and drawn at random.

`chunk.py`: a file of records. `versions.py`: what a data set is made of, version by version. `writer.py`: new versions.
`reader.py`: records by their place, in ascending order of bytes. `sampler.py`: which records make a batch; pure.

After OneAccess (Kakaraparthi, Venkatesh, Poondla: "OneAccess: Concurrent Data Access Layer for Analytics").
"""
