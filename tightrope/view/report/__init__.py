"""report.html: a run, or several side by side, on one page that needs no network."""

from .columns import Columns, read_rows
from .comparison import comparison_page
from .live import ABOUT, REPORT, Report, by_steps, write_page
from .page import run_page
from .record import Clip, Found, Kept, RunRecord, Score, Status

__all__ = [
    "ABOUT", "REPORT", "Clip", "Columns", "Found", "Kept", "Report", "RunRecord", "Score", "Status", "by_steps",
    "comparison_page", "read_rows", "run_page", "write_page",
]  # fmt: skip
