"""Records the section texts that a conversation's model has seen, and keeps them up to date.

The records determine what the model is told when a section has changed: `section_changes` compares
them with the prompt's current rendering.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from ..prompt.errors import PromptRenderError
from ..prompt.registry import SectionNode
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.walk import VisibleSections
from ..visibility import SectionPath, SectionVisibility
from .messages import Instructions, ToolExecutionOutcome, sendable

__all__ = [
    "SectionRecord",
    "SectionRecords",
    "apply_outcomes",
    "keep_read",
    "section_changes",
    "shown_records",
]

_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
_CHANGED = (
    "These parts of your instructions have changed. What they say now replaces what they said "
    "before.\n\n"
)
_GONE = "These parts of your instructions no longer apply: {}."
_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRecord:
    """A conversation's record of one section.

    `visibility` is the section's current visibility, and `opened` is the model's own choice.
    `summary` and `full` are the texts that the model last saw. `None` means that the model has not
    seen the text, or that the text no longer applies, such as the full text of a closed section.
    """

    path: SectionPath
    visibility: SectionVisibility
    opened: SectionVisibility | None = None
    summary: str | None = None
    full: str | None = None

    def text(self, form: SectionVisibility) -> str | None:
        """Returns the text that the model last saw in this form."""
        return self.full if form is _FULL else self.summary

    def with_text(self, form: SectionVisibility, text: str) -> Self:
        """Returns the record after the model has seen `text`."""
        text = sendable(text)
        return replace(self, full=text) if form is _FULL else replace(self, summary=text)


type SectionRecords = dict[SectionPath, SectionRecord]


def shown_records(rendered: AnyRenderedPrompt) -> SectionRecords:
    """Returns records of all sections that are shown or that an override could show."""
    decisions = rendered.view.decisions
    records: SectionRecords = {}
    for (node, visibility), text in zip(
        rendered.sections.items(), rendered.section_texts, strict=True
    ):
        read, is_full = sendable(text), visibility is _FULL
        records[node.path] = SectionRecord(
            path=node.path,
            visibility=visibility,
            opened=decisions.opened.get(node.path),
            summary=None if is_full else read,
            full=read if is_full else None,
        )
    for path, visibility in decisions.overrides.items():
        opened = decisions.opened.get(path)
        record = SectionRecord(path=path, visibility=visibility, opened=opened)
        records.setdefault(path, record)
    return records


def apply_outcomes(records: SectionRecords, outcomes: Iterable[ToolExecutionOutcome]) -> None:
    """Records the sections that tool calls have opened, shown and closed."""
    for outcome in outcomes:
        requested = outcome.request.requested_overrides if outcome.request else ()
        for path in (*outcome.opened, *requested):
            _set_visibility(records, path, _FULL)
        for shown in outcome.shown:
            record = records.get(shown.path)
            record = record or SectionRecord(path=shown.path, visibility=shown.visibility)
            records[shown.path] = record.with_text(shown.visibility, shown.text)
        if closed := outcome.closed:
            _set_visibility(records, closed, _SUMMARY)
            for path, record in records.items():
                if path[: len(closed)] == closed:
                    summary = record.summary if path == closed else None
                    records[path] = replace(record, summary=summary, full=None)


def keep_read(
    records: SectionRecords, before: SectionRecords, read: Mapping[SectionPath, str]
) -> None:
    """Keeps the texts of `before` in `records` if answers of `read_section` still show them.

    `read` contains these answers by section. The prompt itself shows only its open sections.
    """
    for path, record in before.items():
        answers = [text for root, text in read.items() if path[: len(root)] == root]
        now = records.get(path, record)
        for form in (_SUMMARY, _FULL):
            known = record.text(form)
            if known is None or now.text(form) is not None:
                continue
            if any(known in answer for answer in answers):
                now = records[path] = now.with_text(form, known)


def _set_visibility(
    records: SectionRecords, path: SectionPath, visibility: SectionVisibility
) -> None:
    record = records.get(path) or SectionRecord(path=path, visibility=visibility)
    records[path] = replace(record, visibility=visibility, opened=visibility)


def section_changes(
    before: Iterable[SectionRecord], rendered: AnyRenderedPrompt
) -> tuple[list[Instructions], SectionRecords]:
    """Returns instructions about changed sections, if any, and the updated records."""
    records = {record.path: record for record in before}
    sections, texts = _visible_texts(records, rendered)
    changed: list[str] = []
    for (node, form), text in zip(sections.items(), texts, strict=True):
        visibility = rendered.sections.get(node, form)
        record = records.get(node.path) or SectionRecord(path=node.path, visibility=visibility)
        if sendable(text) != record.text(form):
            changed.append(text)
        if form is _SUMMARY:
            record = replace(record, full=None)
        if node in rendered.sections:
            opened = rendered.view.decisions.opened.get(node.path, record.opened)
            record = replace(record, visibility=visibility, opened=opened)
        records[node.path] = record.with_text(form, text)
    visible = {node.path for node in sections}
    gone: list[str] = []
    for path, record in records.items():
        if path not in visible and (record.summary, record.full) != (None, None):
            records[path] = replace(record, summary=None, full=None)
            section = rendered.registry.get_section(path)
            if section is None or not rendered.view.is_enabled(section):
                gone.append(repr(".".join(path)))
    parts = [_CHANGED + _SEPARATOR.join(changed)] if changed else []
    if gone:
        parts.append(_GONE.format(", ".join(gone)))
    text = sendable(_SEPARATOR.join(parts))
    return [Instructions(text, rendered.view.media(sections, text))] if text else [], records


def _visible_texts(
    records: SectionRecords, rendered: AnyRenderedPrompt
) -> tuple[VisibleSections, Sequence[str]]:
    """Returns the visible sections and their current texts, including sections the model has read.

    `read_section` shows the full text of a section that remains summarized in the prompt.
    """
    shown, registry = rendered.sections, rendered.registry
    read: list[SectionNode] = []
    for record in records.values():
        node = None if record.full is None else registry.get_section(record.path)
        if node is not None and (node not in shown or shown[node] is record.visibility is _SUMMARY):
            read.append(node)
    if not read:
        return shown, rendered.section_texts
    view = rendered.view.with_visibility({node.path: _FULL for node in read})
    sections = dict(shown)
    for node in read:
        if view.is_enabled(node):
            sections |= view.visible_sections(node)
    try:
        return sections, view.render(sections).texts
    except PromptRenderError:  # raised by a section that the prompt itself does not have to show
        return shown, rendered.section_texts
