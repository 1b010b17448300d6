"""What the HTML reports are made of: one self-contained page, no external asset, readable in light and dark.

Candidates choose some of the text. All of it is escaped, and should some ever slip through, the page's
content security policy runs no script but the report's own, which it knows by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable

from atrex.records import Ratio
from atrex.report.style import SCRIPT, STYLE
from atrex.report.text import DASH, plain, ratio


def page(title: str, sections: Iterable[str]) -> str:
    """The whole document."""
    policy = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{policy}'">
<title>Atrex: {esc(title)}</title><style>{STYLE}</style></head>
<body><main>
{"".join(sections)}</main><script>{SCRIPT}</script></body></html>
"""


def esc(text: str, limit: int = 400) -> str:
    """Text that HTML shows as it is."""
    return html.escape(plain(text, limit))


def section(title: str, body: str) -> str:
    """A card with a heading."""
    return f"<section><h2>{title}</h2>{body}</section>"


def bullets(lines: Iterable[str]) -> str:
    """A list of lines that are yet to be escaped."""
    return f"<ul>{''.join(f'<li>{esc(line)}</li>' for line in lines)}</ul>"


def grid(columns: Iterable[tuple[str, str]], rows: Iterable[str]) -> str:
    """A sortable table: columns as (name, class), rows as their cells' HTML."""
    head = "".join(
        f'<th class="{kind}"><button type="button">{esc(name)}</button></th>' for name, kind in columns
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def number(value: float | None, shown: str) -> str:
    """A cell that sorts by its value; an unknown one sorts last among falling values."""
    return f'<td class="n" data-v="{-1 if value is None else f"{value:.9g}"}">{shown}</td>'


def gain(value: Ratio | None) -> str:
    """A cell with a speed-up and its interval."""
    if value is None:
        return number(None, DASH)
    median, rest = ratio(value).split(" ", 1)
    return number(value.median, f'{median} <span class="range">{rest.replace(",", ", ")}</span>')
