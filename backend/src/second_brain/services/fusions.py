"""The fusions of core/09_fusion.sql. Written by tools/fusions.py: make baseline."""

from typing import Literal

Fusion = Literal["rrf", "relative_score", "auto"]
"""How both legs are fused; a search that names none uses that stored for the corpus, else
`rrf`."""
