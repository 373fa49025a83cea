"""What a person sees of a run. Takes records and paths, knows nothing of runs."""

from .evaluation_line import EvaluationLine
from .live import Live
from .metrics_file import MetricsFile, finite
from .onlooker import About, Audience, Onlooker, Shown, Target
from .progress import Progress
from .report.live import Report
from .rollout_video import RolloutVideo
from .video import Clip, Video, first_phase

__all__ = [
    "About",
    "Audience",
    "Clip",
    "EvaluationLine",
    "Live",
    "MetricsFile",
    "Onlooker",
    "Progress",
    "Report",
    "RolloutVideo",
    "Shown",
    "Target",
    "Video",
    "finite",
    "first_phase",
]
