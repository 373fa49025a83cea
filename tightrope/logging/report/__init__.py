"""report.html: a run, or several side by side, on one page that needs no network."""

from .columns import Columns, number, read_rows
from .comparison_page import comparison_page
from .record import Clip, Found, Kept, RunRecord, Score, Status
from .run_page import LISTED, run_page
from .writer import ABOUT, REPORT, ReportWriter, by_steps, stopped_at_return, write_page

__all__ = [
    "ABOUT", "LISTED", "REPORT", "Clip", "Columns", "Found", "Kept", "ReportWriter", "RunRecord", "Score", "Status", "by_steps",
    "comparison_page", "number", "read_rows", "run_page", "stopped_at_return", "write_page",
]  # fmt: skip
