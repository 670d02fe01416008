"""A page of an image as one HTML file: without scripts, and without anything from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from builder.pipeline.imagepage import ImagePage, PageLayer
from builder.prove.receipts import CheckResult, Receipt
from builder.trust import sbom

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #202124; background: #fff; margin: 0; }
main { max-width: 1000px; margin: 0 auto; padding: 16px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 28px 0 8px; }
.state { display: inline-block; padding: 1px 10px; border-radius: 10px; color: #fff;
  background: #188038; font-size: 13px; } .bad { background: #d93025; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 4px 8px; border-bottom: 1px solid #dadce0;
  vertical-align: top; }
.n { text-align: right; white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 12px; margin: 8px 0; }
dt { color: #5f6368; } dd { margin: 0; overflow-wrap: anywhere; }
.map { position: relative; height: 340px; overflow: hidden; }
.map div { position: absolute; box-sizing: border-box; overflow: hidden; container-type: size;
  border: 1px solid #fff; background: #1967d2; color: #fff; font-size: 12px; line-height: 1.25; }
.map span { display: block; padding: 3px 5px; overflow-wrap: anywhere; }
@container (max-width: 44px) or (max-height: 32px) { .map span { display: none; } }
.map .c1 { background: #12737a; } .map .c2 { background: #7b2fc9; }
.map .c3 { background: #a8471b; }
details summary { cursor: pointer; }
@media (max-width: 500px) { dl { grid-template-columns: 1fr; } dt { margin-top: 4px; }
  th, td { padding: 4px; } .map { height: 480px; } }
@media (prefers-color-scheme: dark) { body { background: #202124; color: #e8eaed; }
  dt { color: #9aa0a6; } th, td { border-color: #3c4043; } .map div { border-color: #202124; } }
"""

_COLOURS = 4
"""Colours of layers on the map."""

Place = tuple[float, float, float, float]
"""A rectangle on the map in per cent: left, top, width, height."""


def html(page: ImagePage, costs: Mapping[str, str]) -> str:
    """The whole page. costs: what the image costs, by name."""
    sections = {
        "What a pull transfers": _map(page),
        "Proof": _proof(page),
        "Device code": _device_code(page.proof),
        "Signed statements": _said(page),
        "Advisories": _advisories(page),
        "Since the image before": _changed(page),
        "Layers": _layers(page),
        "Packages": _packages(page),
    }
    body = "".join(f"<h2>{name}</h2>{text}" for name, text in sections.items() if text)
    state = "proven" if page.proof else "not proven"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(page.title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>{escape(page.title)}</h1>"
        f'<p><span class="state{"" if page.proof else " bad"}">{state}</span></p>'
        f"{_list({**page.facts, 'a pull': size(page.size), **costs})}{body}"
        "</main></body></html>\n"
    )


def size(count: int) -> str:
    """Bytes for a person, in decimal units."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} B"


def _list(facts: Mapping[str, str]) -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
        + "</dl>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of plain texts. numbers: the columns that are written to the right."""

    def cells(kind: str, texts: Sequence[str]) -> str:
        found = (
            f"<{kind}{' class=n' if place in numbers else ''}>{escape(text)}</{kind}>"
            for place, text in enumerate(texts)
        )
        return f"<tr>{''.join(found)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    return (
        f'<div class="wide"><table><thead>{cells("th", head)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


# --- the map --------------------------------------------------------------------------------------


def _map(page: ImagePage) -> str:
    """The layers as rectangles, each as large as its bytes, and in them their packages."""
    layers = sorted((one for one in page.layers if one.size), key=lambda one: -one.size)
    places = rectangles([layer.size for layer in layers], 0, 0, 100, 100)
    tiles = (
        _tile(layer, number % _COLOURS, *tile)
        for number, (layer, place) in enumerate(zip(layers, places, strict=True))
        for tile in _tiles(layer, place)
    )
    return f'<div class="map">{"".join(tiles)}</div>'


def _tiles(layer: PageLayer, place: Place) -> Iterator[tuple[str, int, Place]]:
    """The packages of a layer with their share of its place; the layer, where it is one package or
    their bytes are not known."""
    sizes = sorted(layer.downloads.items(), key=lambda one: -one[1])
    if len(sizes) < 2:
        yield layer.name, layer.size, place
        return
    places = rectangles([bytes_ for _, bytes_ in sizes], *place)
    for (name, bytes_), inside in zip(sizes, places, strict=True):
        yield name, bytes_, inside


def _tile(layer: PageLayer, colour: int, name: str, bytes_: int, place: Place) -> str:
    x, y, width, height = place
    about = name if name == layer.name else f"{name}, in {layer.name}"
    return (
        f'<div class="c{colour}" style="left:{x:.2f}%;top:{y:.2f}%;width:{width:.2f}%;'
        f'height:{height:.2f}%" title="{escape(f"{about}: {size(bytes_)}")}">'
        f"<span>{escape(name)}<br>{size(bytes_)}</span></div>"
    )


def rectangles(
    sizes: Sequence[float], x: float, y: float, width: float, height: float
) -> Iterator[Place]:
    """Rectangles of these areas that fill one: halves of about equal size, cut along its long side.

    sizes: the largest first.
    """
    if len(sizes) <= 1:
        yield from ((x, y, width, height) for _ in sizes)
        return
    total, left, count = sum(sizes), 0.0, 0
    while count < len(sizes) - 1 and (count == 0 or left + sizes[count] <= total / 2):
        left += sizes[count]
        count += 1
    part = left / total
    if width >= height:
        yield from rectangles(sizes[:count], x, y, width * part, height)
        yield from rectangles(sizes[count:], x + width * part, y, width * (1 - part), height)
    else:
        yield from rectangles(sizes[:count], x, y, width, height * part)
        yield from rectangles(sizes[count:], x, y + height * part, width, height * (1 - part))


# --- what is known of it --------------------------------------------------------------------------


def _proof(page: ImagePage) -> str:
    if page.proof is None:
        return f"<p>{escape(page.problem or 'no receipt lies beside it')}</p>"
    one = page.proof
    rows = [
        (
            check.name,
            "passed" if check.passed else "failed",
            f"{check.seconds:.1f} s",
            _seen(check),
        )
        for check in one.checks
    ]
    about = f"Suite {one.suite}, {one.made_at}, on {one.device}, by the factory {one.made_by}."
    return f"<p>{escape(about)}</p>{_table(('check', '', 'time', 'what it saw'), rows, (2,))}"


def _seen(check: CheckResult) -> str:
    """What a check saw, in a few words: lists and tables by their length."""
    return ", ".join(f"{name}: {_shown(value)}" for name, value in check.seen.items())


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return f"{len(value)}"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else f"{value}"


def _device_code(proof: Receipt | None) -> str:
    seen = (
        next((one.seen for one in proof.checks if one.name == "device-code"), {}) if proof else {}
    )
    libraries = seen.get("libraries")
    if not isinstance(libraries, dict) or not libraries:
        return ""
    rows = [(path.rpartition("/")[2], str(status)) for path, status in sorted(libraries.items())]
    about = f"Compute capability {seen.get('compute_capability')}: {seen.get('status')}."
    return f"<p>{escape(about)}</p>{_table(('library', 'on this GPU'), rows)}"


def _said(page: ImagePage) -> str:
    return _table(("statement", "signed by"), page.said) if page.said else ""


def _advisories(page: ImagePage) -> str:
    if page.not_asked:
        return f'<p><span class="state bad">not looked up</span> {escape(page.not_asked)}</p>'
    if not page.advisories:
        return "<p>Nothing is known against its packages.</p>"
    rows = [(one.package, one.id, one.state) for one in page.advisories]
    return _table(("package", "advisory", ""), rows)


def _changed(page: ImagePage) -> str:
    if page.changed is None:
        return ""
    if not page.changed:
        return "<p>No version differs.</p>"
    rows = [(name, old or "-", new or "-") for name, (old, new) in page.changed.items()]
    return _table(("package", "before", "now"), rows)


def _layers(page: ImagePage) -> str:
    rows = [(one.name, size(one.size), f"{len(one.packages)}") for one in page.layers]
    return _table(("layer, the lowest first", "bytes", "packages"), rows, (1, 2))


def _packages(page: ImagePage) -> str:
    rows = sorted(
        (
            *package.split(" ", 1),
            sbom.licence(package.split(" ")[0]),
            size(layer.downloads[package]) if package in layer.downloads else "",
            layer.name,
        )
        for layer in page.layers
        for package in layer.packages
        if " " in package
    )
    head = ("package", "version", "licence, where it is known", "download", "layer")
    table = _table(head, rows, (3,))
    return f"<details><summary>{len(rows)} packages</summary>{table}</details>"
