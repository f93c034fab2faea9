"""What a quick build does not know about a file, because it reads the file's index and decodes nothing.

Column `unproven` of a row names these facts, separated by blanks. A build without `--quick` proves them, and decoders
verify what they need of them as they read (`essp_engine/video/reader.py`).
"""

from __future__ import annotations

PACKETS = "packets"
"""The packets were not read: their number, times and keyframes are those of the container's index."""
ORDER = "order"
"""That each packet is one frame, that frames are shown in the order of their timestamps, and that decoding from any
keyframe gives the same frames as decoding from the start: the codec's standard says so, and no process has tried."""
PIXELS = "pixels"
"""The pixel format, the size after decoding, interlacing, and changes of the size."""
DAMAGE = "damage"
"""Whether all of the file decodes."""
CHECKSUMS = "checksums"
"""The checksums of a file in a store, which need all of its bytes."""
FACTS = (PACKETS, ORDER, PIXELS, DAMAGE, CHECKSUMS)
"""All of them, in the order in which they are listed."""
