"""Pictures as SVG text: boxes, lines, arrows and labels in one font of known widths."""

from dataclasses import dataclass, field
from html import escape
from typing import Literal

__all__ = ["LINE", "Kind", "Look", "Picture", "width_of"]

LINE = 18
"""Pixels from one line of text to the next."""

_CHARACTER = 7.3  # the width of a 12-pixel character in common monospaced fonts
_STYLE = """
text{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1c2333}
.strong{font-weight:600}.muted{fill:#5b6478}
.box{fill:#f5f6fc;stroke:#5c6bc0}.accent{fill:#e3f4ea;stroke:#3b8f5e}.warning{fill:#fdeceb;stroke:#c0504d}
.line{fill:none;stroke:#8791ab}.head{fill:#8791ab}
@media (prefers-color-scheme:dark){
text{fill:#e6e9f2}.muted{fill:#a3abc0}
.box{fill:#262b3d;stroke:#8c9eff}.accent{fill:#1f3a2b;stroke:#6fcf97}.warning{fill:#44262a;stroke:#ef8a86}
.line{stroke:#8791ab}.head{fill:#8791ab}}
""".strip()

type Kind = Literal["box", "accent", "warning"]
type Look = Literal["", "strong", "muted"]
type Anchor = Literal["start", "middle", "end"]


def width_of(text: str) -> float:
    """Returns the width of `text` in pixels."""
    return len(text) * _CHARACTER


@dataclass(slots=True)
class Picture:
    """A picture of `width` pixels that grows downwards; screen readers read its `title`."""

    title: str
    width: int = 760
    height: float = 0
    _parts: list[str] = field(default_factory=list[str])

    def text(
        self, x: float, y: float, text: str, *, look: Look = "", anchor: Anchor = "start"
    ) -> None:
        """Writes one line with its baseline at `y`."""
        style = f' class="{look}"' if look else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._add(
            f'<text x="{x:g}" y="{y:g}"{style}{place}>{escape(text, quote=False)}</text>', y + 6
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: list[tuple[str, Look]],
        *,
        kind: Kind = "box",
    ) -> None:
        """Draws a box that contains lines of text, the first at the top."""
        size = f'width="{width:g}" height="{height:g}"'
        self._add(f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size} rx="5"/>', y + height + 2)
        for number, (line, look) in enumerate(lines, start=1):
            self.text(x + 10, y + number * LINE - 1, line, look=look)

    def line(self, *points: tuple[float, float], arrow: bool = False) -> None:
        """Draws a line through `points`, with an arrowhead at its end if it is an arrow."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        head = ' marker-end="url(#head)"' if arrow else ""
        self._add(f'<polyline class="line" points="{path}"{head}/>', max(y for _, y in points) + 2)

    def dot(self, x: float, y: float) -> None:
        """Draws a small dot."""
        self._add(f'<circle class="head" cx="{x:g}" cy="{y:g}" r="4"/>', y + 6)

    def svg(self) -> str:
        """Returns the picture as the text of an SVG file."""
        title = escape(self.title)
        marker = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="8" markerHeight="8" orient="auto">'
            '<path class="head" d="M0,0 L8,4 L0,8 z"/></marker>'
        )
        width, height = f"{self.width}", f"{self.height:g}"
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">'
        inside = [
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{marker}</defs>",
            *self._parts,
        ]
        return "\n".join([start, *inside, "</svg>\n"])

    def _add(self, part: str, bottom: float) -> None:
        self._parts.append(part)
        self.height = max(self.height, bottom)
