"""Prompt snapshot files, based on syrupy: a file's text, and the report of a change.

`inspection/states.py` creates the states in a file; syrupy determines when files are compared and
written, and which ones are unused.
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
from ..prompt.template import Prompt, PromptTemplate
from ..serde import JsonSchema
from ..visibility import SectionVisibility

__all__ = ["PromptExtension"]

type _Data = Any  # Any: syrupy accepts data of any type

_SUFFIXES = {SectionVisibility.SUMMARY: " (summary)", SectionVisibility.FULL: ""}
_PREFACE = (
    "`closed` is what the model is shown at first; every other state, what it is shown besides."
)


class PromptExtension(SingleFileSnapshotExtension):
    """Writes a prompt, a template or the result of `render_states` to one Markdown file.

    The file contains each text and each tool once, so changing one of them changes only one place.
    For a prompt or template, it contains the smallest states, which together show all texts and
    tools.
    """

    _write_mode = WriteMode.TEXT
    file_extension = "md"

    def serialize(self, data: _Data, **_filters: object) -> str:
        """Returns the file's content.

        Raises `TypeError` for a value that is not a prompt, and the errors of `render_states`.
        """
        if isinstance(data, Prompt | PromptTemplate):
            data = render_states(data, limit=0)
        match data:
            case (PromptState(), *rest) if all(isinstance(state, PromptState) for state in rest):
                return _golden(data)
            case _:
                raise TypeError(
                    "the snapshot must compare a Prompt, a PromptTemplate or the result of "
                    f"render_states, got {data!r:.100}"
                )

    def diff_lines(self, serialized_data: _Data, snapshot_data: _Data) -> Iterator[str]:
        """Yields the names of all changed parts, then a diff for each part."""
        if not snapshot_data:
            yield "run pytest with --snapshot-update to write it"
            return
        old, new = _blocks(snapshot_data), _blocks(serialized_data)
        changed = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        changes = [
            f"{name} {'is new' if name not in old else 'is gone' if name not in new else 'changed'}"
            for name in changed
        ]
        yield (
            f"{', '.join(changes) or 'the file was edited'}; "
            "if you meant that, run pytest with --snapshot-update"
        )
        styles = {"-": snapshot_style, "+": received_style}
        for name in changed:
            yield f"{name}:"
            diff = unified_diff(old.get(name, []), new.get(name, []), lineterm="", n=2)
            for line in islice(diff, 3, None):  # skips the diff's header
                yield styles.get(line[:1], context_style)(line)


def _golden(states: Sequence[PromptState]) -> str:
    """Returns the file: each state's outline, then each section, tool and output once."""
    blocks: dict[str, str] = {}

    def add(heading: str, body: str, state: PromptState) -> None:
        # An author's section can differ between states.
        if blocks.setdefault(heading, body) != body:
            blocks[f"{heading} in state `{state.name}`"] = body

    initial = _outline(states[0])
    for state in states:
        outline = _outline(state)
        lines = [
            f"- {name}{suffix}"
            for name, suffix in outline.items()
            if state is states[0] or initial.get(name) != suffix
        ]
        lines += [f"- without {name}" for name in initial if name not in outline]
        add(f"State `{state.name}`", "\n".join(lines), state)
    for state in states:
        rendered = state.rendered
        sections = rendered.sections.items()
        for (node, visibility), span in zip(sections, rendered.spans, strict=True):
            text = _fenced(state.text[span.start : span.end])
            add(f"Section `{node.key}`{_SUFFIXES[visibility]}", text, state)
    for state in states:
        for tool in state.tools:
            body = f"{_fenced(tool.description)}\n\n{_json(tool.parameters)}"
            add(f"Tool `{tool.name}`", body, state)
    if output := states[0].output:
        add(f"Output `{output.name}`", _json(output.schema), states[0])
    prompt = states[0].rendered.prompt
    title = f"# Prompt `{prompt.ns}/{prompt.key}`" if prompt else "# Prompt"
    parts = [f"## {heading}\n\n{body}" for heading, body in blocks.items()]
    return "\n\n".join([title, _PREFACE, *parts]) + "\n"


def _outline(state: PromptState) -> dict[str, str]:
    """Returns the visible sections with their visibility, and the tools."""
    visibility = state.rendered.visibility.items()
    sections = {f"section `{'.'.join(path)}`": _SUFFIXES[value] for path, value in visibility}
    return sections | {f"tool `{tool.name}`": "" for tool in state.rendered.tools}


def _fenced(text: str, language: str = "text") -> str:
    """Returns `text` in a fenced block that the text cannot end; shows carriage returns as text.

    Carriage returns could otherwise get lost in files.
    """
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.replace('\r', '␍')}\n{fence}"


def _json(schema: JsonSchema) -> str:
    return _fenced(json.dumps(schema, indent=2, ensure_ascii=False), "json")


def _blocks(golden: str) -> dict[str, list[str]]:
    """Returns the lines under each heading, without fences and surrounding blank lines."""
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
