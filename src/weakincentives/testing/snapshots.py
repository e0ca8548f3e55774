"""Golden files of prompts, on syrupy: what a file holds, and how a change of it is told.

The states that go into a file are made in `states.py`; when files are compared, written and found
unused is syrupy's.
"""

import json
import re
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from itertools import islice
from typing import Any

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.terminal import context_style, received_style, snapshot_style

from ..inspection.states import PromptState, render_states
from ..prompt.prompt import Prompt
from ..prompt.template import PromptTemplate
from ..serde import JsonSchema
from ..visibility import SectionVisibility

__all__ = ["PromptExtension"]

_HOW = {SectionVisibility.SUMMARY: " (summary)", SectionVisibility.FULL: ""}
_PREFACE = (
    "`closed` is what the model is shown at first; every other state, what it is shown besides."
)


class PromptExtension(SingleFileSnapshotExtension):
    """Keeps a prompt, a template or what `render_states` gave as one Markdown file.

    Each text and each tool stands in it once, so that a change of one is a change of one place; a
    prompt or template is kept in its smallest states, which hold them all.
    """

    _write_mode = WriteMode.TEXT
    file_extension = "md"

    # Any: syrupy takes data of every kind, and its filters do not apply to prompts.
    def serialize(
        self, data: Any, *, exclude: Any = None, include: Any = None, matcher: Any = None
    ) -> str:
        """The file's content.

        Raises `TypeError` for what is no prompt, and what `render_states` raises.
        """
        if isinstance(data, Prompt | PromptTemplate):
            data = render_states(data, limit=0)
        if not (
            isinstance(data, tuple) and data and all(isinstance(one, PromptState) for one in data)
        ):
            raise TypeError(
                f"{data!r:.100} is no prompt; compare a Prompt, a PromptTemplate or what render_states gave"
            )
        return _golden(data)

    # Any: as in `serialize`
    def diff_lines(self, serialized_data: Any, snapshot_data: Any) -> Iterator[str]:
        """What changed, by name, and then a diff of each section, tool, output and state that did."""
        if not snapshot_data:
            yield "run pytest with --snapshot-update to write it"
            return
        old, new = _blocks(snapshot_data), _blocks(serialized_data)
        changed = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        told = [
            f"{name} {'is new' if name not in old else 'is gone' if name not in new else 'changed'}"
            for name in changed
        ]
        yield f"{', '.join(told) or 'the file was edited'}; where that is meant, run pytest with --snapshot-update"
        for name in changed:
            yield f"{name}:"
            for line in islice(
                unified_diff(old.get(name, []), new.get(name, []), lineterm="", n=2), 3, None
            ):
                yield {"-": snapshot_style, "+": received_style}.get(line[:1], context_style)(line)


def _golden(states: Sequence[PromptState]) -> str:
    """The file: an outline of each state, then each section, each tool and the output once, under
    headings.
    """
    blocks: dict[str, str] = {}

    def add(heading: str, body: str, state: PromptState) -> None:
        # a section of the author's that is not the same each time
        if blocks.setdefault(heading, body) != body:
            blocks[f"{heading} in state `{state.name}`"] = body

    at_first = _outline(states[0])
    for state in states:
        outline = _outline(state)
        lines = [
            f"- {what}{how}"
            for what, how in outline.items()
            if state is states[0] or at_first.get(what) != how
        ]
        lines += [f"- without {what}" for what in at_first if what not in outline]
        add(f"State `{state.name}`", "\n".join(lines), state)
    for state in states:
        for (node, how), span in zip(
            state.rendered.sections.items(), state.rendered.spans, strict=True
        ):
            add(
                f"Section `{node.key}`{_HOW[how]}",
                _fenced(state.text[span.start : span.end]),
                state,
            )
    for state in states:
        for tool in state.tools:
            body = f"{_fenced(tool.description)}\n\n{_json(tool.parameters)}"
            add(f"Tool `{tool.name}`", body, state)
    if output := states[0].output:
        add(f"Output `{output.name}`", _json(output.schema), states[0])
    prompt = states[0].rendered.prompt
    title = f"# Prompt `{prompt.ns}/{prompt.key}`" if prompt else "# Prompt"
    return (
        "\n\n".join(
            [title, _PREFACE, *(f"## {heading}\n\n{body}" for heading, body in blocks.items())]
        )
        + "\n"
    )


def _outline(state: PromptState) -> dict[str, str]:
    """The sections shown, each with how, and the tools."""
    sections = {
        f"section `{'.'.join(path)}`": _HOW[how] for path, how in state.rendered.visibility.items()
    }
    return sections | {f"tool `{tool.name}`": "" for tool in state.rendered.tools}


def _fenced(text: str, language: str = "text") -> str:
    """`text` in a block that nothing in it ends; a carriage return, which a file may lose, becomes
    a visible sign.
    """
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.replace('\r', '␍')}\n{fence}"


def _json(schema: JsonSchema) -> str:
    return _fenced(json.dumps(schema, indent=2, ensure_ascii=False), "json")


def _blocks(golden: str) -> dict[str, list[str]]:
    """The lines under each heading, without fences and the blank lines around them."""
    lines: list[str] = []
    blocks, fence = {"": lines}, ""
    for line in golden.split("\n"):
        if fence:
            if line == fence:
                fence = ""
            else:
                lines.append(line)
        elif line.startswith("```"):
            fence = "`" * (len(line) - len(line.lstrip("`")))
        elif line.startswith("#"):
            lines = blocks.setdefault(line.lstrip("# "), [])
        elif line:
            lines.append(line)
    return blocks
