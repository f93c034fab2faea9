"""Loading: from clips in order to batches on the device.

prefetch.py         batches, ready before the model needs them: which clips form one
batch.py            a batch, on the host or on the device
pixel_batches.py    batches limited in pixels
device_feed.py      the transfer of the next batch while the model trains on this one
device.py           the device of a rank, its precision, and the error when its memory is full
device_views.py     views that the device cuts from whole frames
host_memory.py      memory of batches, reused
rendezvous.py       which rank of a training a process is
settings.py         the settings of programs that prepare batches
"""
