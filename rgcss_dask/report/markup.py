"""Pieces of HTML that are safe whatever the data hold: names, shares, tables, figures."""

from __future__ import annotations

import html
from collections.abc import Iterable

from rgcss_dask.io.safe_text import shown

GENERATOR = '<meta name="generator" content="rgcss_dask report">'  # by which a report is known
NAME = 60  # characters of a name that are shown; the rest is in its tooltip


def escape(text: object) -> str:
    """Make any text safe between tags and inside quotes; no address shows a secret, no character steers."""
    return html.escape(shown(text), quote=True)


def named(text: str, most: int = NAME) -> str:
    """Return a name from the data: escaped, cut when very long, and kept from turning the text around it."""
    text = shown(text)  # before it is cut, that no half of a secret is left
    if len(text) <= most:
        return f"<bdi>{escape(text)}</bdi>"
    return f'<bdi title="{escape(text)}">{escape(text[: most - 1])}…</bdi>'


def percent(share: float, digits: int = 1) -> str:
    """Write a share."""
    return f"{100 * share:.{digits}f}\u202f%"


def signed(value: float) -> str:
    """Write a weight with its sign."""
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def section(title: str, lead: str, *parts: str) -> str:
    """Return a part of the page under a heading."""
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section><h2>{title}</h2>{lead}{''.join(parts)}</section>\n"


def figure(title: str, picture: str, note: str = "", legend: Iterable[tuple[str, str]] = ()) -> str:
    """Return a picture under its title, a note and a legend of (class, HTML)."""
    keys = "".join(f'<span class="key {kind}">{words}</span>' for kind, words in legend)
    keys = f'<p class="legend">{keys}</p>' if keys else ""
    note = f"<p>{note}</p>" if note else ""
    return f"<figure><figcaption><strong>{title}</strong>{note}{keys}</figcaption>{picture}</figure>"


def row_of(*figures: str) -> str:
    """Put figures side by side where there is room."""
    return f'<div class="figures">{"".join(figures)}</div>'


def table(caption: str, heads: Iterable[tuple[str, str]], rows: Iterable[Iterable[tuple[str, object]]]) -> str:
    """Return a table that can be sorted: heads are (class, words), cells (what is shown, what it sorts by)."""
    heads = list(heads)
    kinds = [kind for kind, _ in heads]
    head = "".join(f'<th scope="col" class="{kind}">{words}</th>' for kind, words in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-value="{escape(value)}">{words}</td>'
            for kind, (words, value) in zip(kinds, row, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
    head = f"<caption>{caption}</caption><thead><tr>{head}</tr></thead>"
    return f'{scroll}<table class="sortable">{head}<tbody>{body}</tbody></table></div>'
