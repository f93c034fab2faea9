"""A doctor for data sets: `essp catalog check`.

signals      what the numbers of a video's frames say: cuts, black and frozen stretches, perceptual hashes (pure)
measures     what reading one file came to, and its form in the journal
reading      reads one file, once: in a child process, since it touches untrusted bytes
duplicates   which files show the same (pure)
findings     what is wrong with the catalog, given its rows and the measures (pure)
run          the whole check: reads what is not known yet, keeps it, tells how far it is
page         the findings as one HTML page
"""
