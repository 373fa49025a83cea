"""report.html: a run, or several side by side, on one page that needs no network."""

from .comparison import comparison_page
from .data import (
    CheckpointSummary,
    RunFiles,
    RunRecord,
    RunStatus,
    ScoreRecord,
    VideoFile,
    status_by_steps,
    status_if_target_reached,
)
from .run import ABOUT, LISTED, REPORT, ReportWriter, run_page, write_page

__all__ = [
    "ABOUT", "LISTED", "REPORT", "CheckpointSummary", "ReportWriter", "RunFiles", "RunRecord", "RunStatus", "ScoreRecord",
    "VideoFile", "comparison_page", "run_page", "status_by_steps", "status_if_target_reached", "write_page",
]  # fmt: skip
