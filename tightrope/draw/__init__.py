"""Raster primitives: anti-aliased lines, discs, polygons and text on uint8 frames, and grids of frames."""

from .canvas import Canvas, blank, enlarged, grid, magnified, shrink, stretched, tint, width_of, write
from .colors import ACCENT, BACKGROUND, INK, MUTED, PINK, WARM

__all__ = [
    "ACCENT", "BACKGROUND", "INK", "MUTED", "PINK", "WARM", "Canvas", "blank", "enlarged", "grid", "magnified", "shrink",
    "stretched", "tint", "width_of", "write",
]  # fmt: skip
