"""How good a model's answers are, against labels: `essp evaluate`.

segments.py        mean average precision of segments
segment_lists.py   segments in files: what was found, what is labelled
"""
