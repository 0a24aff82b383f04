"""What was compiled, for people: one self-contained HTML page, or a hundred lines of plain text.

    page.write("report.html", **parts)       text.explain(**parts)

Both are functions of `parts.ReportParts`, look at nothing else, and say where each number comes
from.
"""
