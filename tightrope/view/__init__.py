"""What a person sees of a run. Takes records and paths, knows nothing of runs."""

from .metrics_file import MetricsFile, finite
from .onlooker import About, Audience, Onlooker, Shown
from .progress import Progress
from .report.live import Report
from .video import Video

__all__ = ["About", "Audience", "MetricsFile", "Onlooker", "Progress", "Report", "Shown", "Video", "finite"]
