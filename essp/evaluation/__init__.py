"""How good a model's answers are, compared with labels: `essp evaluate`.

segments.py        mean average precision of segments
segment_lists.py   segments in files: found ones and labels
"""
