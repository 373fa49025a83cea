"""Raster primitives: anti-aliased lines, discs, polygons and text on uint8 frames, and grids of frames."""

from .canvas import (
    ACCENT,
    BACKGROUND,
    CAPTION_HEIGHT,
    INK,
    MUTED,
    PINK,
    WARM,
    Canvas,
    blank,
    captioned_grid,
    cell_scale,
    enlarged,
    grid,
    magnified,
    shrink,
    stretched,
    text_width,
    tint,
    write,
)  # fmt: skip

__all__ = [
    "ACCENT", "BACKGROUND", "CAPTION_HEIGHT", "INK", "MUTED", "PINK", "WARM", "Canvas", "blank", "captioned_grid",
    "cell_scale", "enlarged", "grid", "magnified", "shrink", "stretched", "text_width", "tint", "write",
]  # fmt: skip
