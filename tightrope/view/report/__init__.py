"""report.html: a run, or several side by side, on one page that needs no network."""

from .columns import Columns, number, read_rows
from .comparison import comparison_page
from .live import ABOUT, REPORT, Report, by_steps, stopped_at_return, write_page
from .page import LISTED, run_page
from .record import Clip, Found, Kept, RunRecord, Score, Status

__all__ = [
    "ABOUT", "LISTED", "REPORT", "Clip", "Columns", "Found", "Kept", "Report", "RunRecord", "Score", "Status", "by_steps",
    "comparison_page", "number", "read_rows", "run_page", "stopped_at_return", "write_page",
]  # fmt: skip
