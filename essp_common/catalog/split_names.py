"""What splits are called: the names that data sets use, and the ones that ESSP uses. Loads nothing else."""

from __future__ import annotations

_ALIASES = {
    "training": "train",
    # Combined splits are for training.
    **dict.fromkeys(("trainval", "train_val", "train-val", "train+val"), "train"),
    **dict.fromkeys(("val", "valid", "validate", "dev"), "validation"),  # Kinetics uses `validate`
    "testing": "test",
}
SPLIT_NAMES = frozenset({"train", "validation", "test", *_ALIASES})
"""Folder names that are recognised as splits without other information."""


def canonical_split(name: str) -> str:
    """The canonical name of a split: `val` is `validation`, `Training` is `train`; others are unchanged."""
    lower = name.strip().lower()
    return _ALIASES.get(lower, lower if lower in SPLIT_NAMES else name.strip())
