"""A doctor for data sets: `essp catalog check`.

signals      what the numbers of a video's frames show: cuts, black and frozen stretches, perceptual hashes (pure)
measures     the result of reading one file, and its form in the journal
reading      reads one file, once: in a child process, since the bytes are untrusted
duplicates   which files have the same content (pure)
findings     what is wrong with the catalog, given its rows and the measures (pure)
run          the whole check: reads what is not known yet, keeps the results and reports progress
page         the findings as one HTML page
"""
