"""The page of a report: everything in one file, text escaped, no script, nothing to load."""

from __future__ import annotations

from base64 import b64encode

from jinja2 import Environment, PackageLoader, StrictUndefined

from torchtune_smt.report.content import Report


def page(report: Report) -> str:
    """Return a report as HTML.

    Whatever comes from outside is escaped, and pictures are drawn from data in the page. A content
    security policy forbids the browser to load or to run anything.
    """
    environment = Environment(
        loader=PackageLoader("torchtune_smt.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    picture = b64encode(report.curves).decode("ascii")
    return environment.get_template("page.html.jinja").render(report=report, picture=picture)
