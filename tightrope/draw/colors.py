"""The palette every environment draws with (RGB)."""

BACKGROUND = (250, 250, 247)
INK = (38, 43, 54)
MUTED = (196, 199, 204)
ACCENT = (38, 103, 179)
WARM = (214, 122, 46)
PINK = (255, 128, 171)
