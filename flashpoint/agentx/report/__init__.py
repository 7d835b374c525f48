"""The report page: one self-contained HTML file about a set of run archives (docs/report.md).

`page` puts it together; every other file computes one section from an archive, and `templates/` holds the
HTML, CSS and JavaScript.
"""

from flashpoint.agentx.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
