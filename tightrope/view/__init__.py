"""What a person sees of a run. Takes records and paths, knows nothing of runs."""

from .metrics_file import MetricsFile, finite
from .progress import Progress
from .video import Video

__all__ = ["MetricsFile", "Progress", "Video", "finite"]
