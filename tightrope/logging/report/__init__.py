"""report.html: a run, or several side by side, on one page that needs no network."""

from .comparison import comparison_page
from .record import (
    CheckpointFile,
    RunFiles,
    RunRecord,
    RunStatus,
    ScoreRecord,
    VideoFile,
    status_by_steps,
    target_status,
)
from .run import ABOUT, LISTED, REPORT, ReportWriter, run_page, write_page

__all__ = [
    "ABOUT", "LISTED", "REPORT", "CheckpointFile", "ReportWriter", "RunFiles", "RunRecord", "RunStatus", "ScoreRecord",
    "VideoFile", "comparison_page", "run_page", "status_by_steps", "target_status", "write_page",
]  # fmt: skip
