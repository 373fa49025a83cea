"""The outputs of a run: console, metrics.jsonl, trackers, videos and report pages. All but metrics.jsonl are callbacks."""

from .callback import Callback, CallbackList, EvaluationResult, RunInfo, StateView, StopTraining, Target, TrainingResult
from .console import ConsoleLogger, EvaluationLine
from .metrics import MetricsFile, finite
from .report.run import ReportWriter
from .video import Clip, NotebookPicture, RolloutVideo, Video, first_phase

__all__ = [
    "Callback", "CallbackList", "Clip", "ConsoleLogger", "EvaluationLine", "EvaluationResult", "MetricsFile",
    "NotebookPicture", "ReportWriter", "RolloutVideo", "RunInfo", "StateView", "StopTraining", "Target", "TrainingResult",
    "Video", "finite", "first_phase",
]  # fmt: skip
