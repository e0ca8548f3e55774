"""Previews of tool calls for a reviewer, and the decisions on them.

`preview_arguments` and `preview_effects` create a `Preview` of limited size. Its digest covers
everything that the preview shows or omits, so two previews with the same digest have the same
effects.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from typing import Literal, Protocol, cast, runtime_checkable

from .. import serde
from ..displays import cut, literal, longest_run, visible
from ..errors import SerdeError, message_of
from ..filesystem.overlay import OverlayFilesystem
from ..filesystem.text_diff import text_diff
from ..filesystem.undo import Content, FileChange
from ..prompt.approval_rules import ApprovalMode
from ..prompt.tool import ToolResult
from ..protocols import Fork
from ..resources import NotIsolatedError
from ..runtime.events import Event
from ..runtime.session.fork import SessionFork
from ..runtime.session.snapshots import type_name
from ..serde import Json
from ..serde.json_types import AnyJson
from .messages import ToolCall, unwrap_arguments

__all__ = [
    "Approve",
    "Approver",
    "Change",
    "Decision",
    "Deny",
    "Preview",
    "Previewable",
    "ReplaceArguments",
    "arguments_json",
    "preview_arguments",
    "preview_effects",
]


@dataclass(frozen=True, slots=True)
class Approve:
    """Approve the call with exactly the effects that were previewed."""

    kind: Literal["approve"] = field(default="approve", repr=False)


@dataclass(frozen=True, slots=True)
class Deny:
    """Deny the call and give the model the `reason`.

    Raises `TypeError` if the reason is not a string.
    """

    reason: str = ""
    kind: Literal["deny"] = field(default="deny", repr=False)

    def __post_init__(self) -> None:
        reason: object = self.reason
        if not isinstance(reason, str):
            raise TypeError(
                f"the reason of Deny must be a string for the model, got {reason!r:.100}"
            )


@dataclass(frozen=True, slots=True)
class ReplaceArguments:
    """Run the call with different arguments, which the model sees along with the answer.

    If the call's effects were previewed, the approver is asked again about the new effects.
    """

    arguments: Mapping[str, Json]
    kind: Literal["replace"] = field(default="replace", repr=False)


def arguments_json(arguments: object) -> str:
    """Returns replacement arguments as JSON text; raises `TypeError` if JSON would change them."""
    try:
        if not isinstance(arguments, Mapping):
            raise TypeError("not a mapping")
        values = dict(cast(Mapping[str, Json], arguments))  # the comparison below proves the cast
        text = json.dumps(values, ensure_ascii=False, allow_nan=False)
        if json.loads(text) != values:
            raise TypeError(
                "JSON would change a key or a value, such as a number used as a key, or a tuple"
            )
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"ReplaceArguments takes a mapping of JSON values, got {arguments!r:.200} ({error})"
        ) from error
    return text


type Decision = Approve | Deny | ReplaceArguments
"""A decision on one call."""


@runtime_checkable
class Previewable(Protocol):
    """A fork of a resource that can describe the changes that merging it would make."""

    def preview(self) -> str:
        """Returns the changes as text, which must be the same for equal changes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A single change that a call would make.

    `name` is a slice's type, a path, or a resource's class. `diff` is a unified diff of a text
    file; for state, it has one line for each JSON value that is removed (`-`) or added (`+`). If
    `diff` is empty, `note` describes the change.
    """

    kind: Literal["state", "file", "directory", "resource"]
    name: str
    action: Literal["create", "change", "remove"]
    diff: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A tool call that is pending approval; with `approval="effects"`, includes its effects.

    `arguments` is JSON text. `answer` is the answer that the model would see, and `success` is true
    if the call would succeed; a failing call does not change anything. `events` are published only
    when the call takes effect. `reason` explains why the effects cannot be shown, or why the
    approver is being asked again. `omitted` describes everything that the preview leaves out. For a
    call in a nested run, `inside` names the tools of the enclosing calls, outermost first, and the
    call's id starts with the id of the outermost call.
    """

    tool: str
    call_id: str
    arguments: str
    approval: ApprovalMode
    changes: tuple[Change, ...] = ()
    events: tuple[str, ...] = ()
    answer: str = ""
    success: bool = True
    reason: str = ""
    omitted: tuple[str, ...] = ()
    digest: str = ""
    inside: tuple[str, ...] = ()

    @property
    def is_intact(self) -> bool:
        """Whether the preview still matches its digest."""
        return "." not in self.digest or self.digest == _with_digests(self).digest

    def shows_same(self, other: "Preview") -> bool:
        """Whether both previews show the same call and the same effects; ignores the reason."""
        return (
            _with_digests(replace(self, reason="")).digest
            == _with_digests(replace(other, reason="")).digest
        )

    def with_reason(self, reason: str) -> "Preview":
        """Returns the preview with another `reason`."""
        return _with_digests(replace(self, reason=reason))

    def __str__(self) -> str:
        return "\n".join([visible(line) for line in self._lines(_text_lines, str)])

    def _repr_markdown_(self) -> str:
        return "\n".join([visible(line) for line in self._lines(_fenced, literal)])

    def _lines(
        self, block: Callable[[str, str], list[str]], span: Callable[[str], str]
    ) -> Iterator[str]:
        inside = f", inside {' and '.join(map(span, self.inside))}," if self.inside else ""
        yield f"A call of {span(self.tool)}{inside} waits for approval of its {self.approval}."
        if self.reason:
            yield span(self.reason)
        yield from (
            "",
            "Arguments:",
            *block("json", cut(_readable_arguments(self.arguments), _MAX_ANSWER)),
        )
        if self.approval == "effects":
            yield from ("", "Changes:" if self.changes else "Changes: none.")
        for change in self.changes:
            note = f": {change.note}" if change.note else ""
            yield f"- {change.action} {change.kind} {span(change.name + note)}".replace("\n", " ")
            if change.diff:
                yield from block("diff", change.diff)
        if self.events:
            yield from ("", "Events:", *[f"- {span(event)}" for event in self.events])
        if self.approval == "effects":
            outcome = "The model would read:" if self.success else "The call fails with:"
            yield from ("", outcome, *block("text", self.answer))
        if self.omitted:
            yield from ("", "Left out:", *[f"- {span(note)}" for note in self.omitted])


type Approver = Callable[[Preview], Decision | Awaitable[Decision]]
"""A plain function or a coroutine function that decides on one call."""

_MAX_DIFF, _MAX_DIFFS, _MAX_ANSWER, _MAX_EVENT = 20_000, 100_000, 10_000, 500  # characters
_MAX_CHANGES, _MAX_EVENTS = 200, 100
_MAX_DIFFED = 500_000  # bytes per file, because a diff can take quadratic time
_MAX_READ = 50_000_000  # bytes of files that a call changes
_JSON_PART = re.compile(r'"(?:[^"\\]++|\\.)*+"|\s+|[,:]')
# event fields that differ each time a call runs
_LOCAL = {"event_id", "created_at", "session_id", "run_id", "run_path"}


def preview_arguments(call: ToolCall, reason: str = "") -> Preview:
    """Returns a preview that shows only the arguments of a call."""
    preview = Preview(
        tool=call.name,
        call_id=call.call_id,
        arguments=unwrap_arguments(call.arguments),
        approval="arguments",
        reason=reason,
        digest=_digest([call.name, unwrap_arguments(call.arguments)]),
    )
    return _with_digests(preview)


def preview_effects(
    call: ToolCall,
    session: SessionFork,
    forks: Iterable[tuple[object, Fork]],
    answer: str,
    *,
    success: bool,
    result: ToolResult[object] | None = None,
) -> Preview:
    """Returns the preview of a call that ran on forks.

    Everything that the preview shows is treated as read by the call, so a later merge makes either
    exactly these changes or none. If `success` is false, the preview shows no changes, because a
    failed call is undone. `result` is the handler's result, if there is one. Raises
    `NotIsolatedError` for effects that cannot be shown.
    """
    shown = _PreviewedChanges()
    if success:
        for name, differences in session.state_changes().items():
            shown.add(_state_change(name, differences), [name, differences])
        pairs = sorted(forks, key=lambda pair: type(pair[0]).__qualname__)
        filesystems = sum(isinstance(fork, OverlayFilesystem) for _, fork in pairs)
        for origin, fork in pairs:
            if isinstance(fork, OverlayFilesystem):
                place = f"{origin!r} " if filesystems > 1 else ""
                for change in fork.changes(fork.start, _MAX_READ):
                    shown.add(*_file_change(change, place))
            else:
                name = type(origin).__qualname__
                if not isinstance(fork, Previewable):
                    raise NotIsolatedError(f"the fork of {name} has no preview()")
                note = _preview_of(fork, name)
                shown.add(Change(kind="resource", name=name, action="change", note=note), note)
    # Exclude the library's own events about nested runs, because they contain times and ids.
    own = [event for event in session.events if type(event).__module__ != Event.__module__]
    texts = [_texts_of(event, "the event") for event in own]
    events = [text for text, _ in texts]
    contents = [[type_name(type(event)), text] for event, (_, text) in zip(own, texts, strict=True)]
    hidden = _omitted_parts(result)
    arguments = unwrap_arguments(call.arguments)
    content = [call.name, arguments, shown.digests, contents, hidden, answer, success]
    if (left := len(shown.digests) - _MAX_CHANGES) > 0:
        shown.omitted.append(f"{left} of {len(shown.digests)} changes")
    shown.omitted += hidden
    if len(events) > _MAX_EVENTS:
        shown.omitted.append(f"{len(events) - _MAX_EVENTS} of {len(events)} events")
    preview = Preview(
        tool=call.name,
        call_id=call.call_id,
        arguments=arguments,
        approval="effects",
        changes=tuple(shown.changes),
        events=tuple([cut(event, _MAX_EVENT) for event in events[:_MAX_EVENTS]]),
        answer=cut(answer, _MAX_ANSWER),
        success=success,
        omitted=tuple([cut(note, _MAX_ANSWER) for note in shown.omitted]),
        digest=_digest(content),
    )
    return _with_digests(preview)


class _PreviewedChanges:
    """The changes that a preview shows, within its limits, and the digests of all changes."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.digests: list[str] = []
        self.omitted: list[str] = []
        self._size = 0

    def add(self, change: Change, content: object) -> None:
        """Adds a change; `content` is its complete content, for the digest."""
        self.digests.append(_digest([change.kind, change.name, change.action, content]))
        if len(self.changes) >= _MAX_CHANGES:
            return
        diff, note = change.diff, cut(change.note, _MAX_ANSWER)
        limit = max(min(_MAX_DIFF, _MAX_DIFFS - self._size), 0)
        if len(diff) > limit:
            shown = diff[:limit].rpartition("\n")[0]
            left = len(diff) - len(shown)
            self.omitted.append(
                f"{left:,} of {len(diff):,} characters of the diff of {change.name}"
            )
            diff = shown
        self._size += len(diff)
        self.changes.append(
            Change(kind=change.kind, name=change.name, action=change.action, diff=diff, note=note)
        )


def _state_change(name: str, differences: AnyJson) -> Change:
    lines: list[str] = []
    for difference in differences:
        start, *path = difference["path"]
        place = "".join(map(_path_step, path))
        for sign, side in (("-", "before"), ("+", "after")):
            if side in difference:
                # sorted, because equal mappings can differ in the order of their keys
                value = json.dumps(difference[side], ensure_ascii=False, sort_keys=True)
                lines.append(f"{sign} [{start}]{place} = {value}\n")
    name = name.rpartition(":")[2]
    return Change(kind="state", name=name, action="change", diff="".join(lines))


def _path_step(key: object) -> str:
    """Returns one step of a path, escaped so that it cannot imitate other parts of the preview."""
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{json.dumps(key, ensure_ascii=False)}]"


def _file_change(change: FileChange, place: str) -> tuple[Change, object]:
    path, before, after = change
    if after == "other":
        raise NotIsolatedError(f"cannot read the file {path}")
    name = place + path
    kind: Literal["directory", "file"] = "directory" if "directory" in (before, after) else "file"
    sizes = [_size_of(before), _size_of(after)]
    diff: str | None = None
    note = ""
    if not isinstance(before, str) and not isinstance(after, str):
        diff = text_diff(before, after, (f"a/{path}", f"b/{path}"), _MAX_DIFFED)
        note = "an empty file" if diff == "" else ""
    if diff is None and (kind == "file" or isinstance(before, bytes) or isinstance(after, bytes)):
        note = f"{sizes[0]} before, {sizes[1]} after"
    action: Literal["create", "change", "remove"] = "change"
    if before is None or after is None:
        action = "create" if before is None else "remove"
    return Change(kind=kind, name=name, action=action, diff=diff or "", note=note), sizes


def _preview_of(fork: Previewable, name: str) -> str:
    try:
        text: object = fork.preview()
    except Exception as error:
        raise NotIsolatedError(f"preview() of {name} failed: {message_of(error)}") from error
    if not isinstance(text, str):
        raise NotIsolatedError(f"preview() of {name} must return a string, got {text!r:.100}")
    return text


def _size_of(content: Content) -> str:
    if isinstance(content, bytes):
        return f"{len(content):,} bytes with SHA-256 {sha256(content).hexdigest()}"
    return {None: "nothing", "directory": "a directory", "other": "a file that is not read"}[
        content
    ]


def _texts_of(value: object, subject: str) -> tuple[str, str]:
    """Returns a value as text to show and as complete text, both without an event's id and time.

    Fields with `repr=False` appear only in the complete text. Raises `NotIsolatedError` for a value
    that cannot be converted to JSON.
    """
    name = type(value).__qualname__
    secret = {item.name for item in fields(value) if not item.repr} if is_dataclass(value) else ()
    try:
        content = serde.dump_lossless(type(value), value)
    except SerdeError as error:
        raise NotIsolatedError(f"cannot preview {subject} {name}: {error}") from error
    if not isinstance(content, dict):
        return f"{name}({_json(content)})", _json(content)
    full = {
        key: item
        for key, item in content.items()
        if key not in _LOCAL or not isinstance(value, Event)
    }
    parts = [
        f"{key}={'(not shown)' if key in secret else _json(item)}" for key, item in full.items()
    ]
    return f"{name}({', '.join(parts)})", _json(full)


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _omitted_parts(result: ToolResult[object] | None) -> list[str]:
    """Describes the parts of a result that are missing from the model's text."""
    if result is None:
        return []
    hidden = [
        f"{media}, {media.url or f'{media.size:,} bytes with SHA-256 {media.digest}'}"
        for media in result.media
    ]
    if result.exclude_value_from_context and result.value is not None:
        text = _texts_of(result.value, "the value")[1]
        hidden.append(f"a value that the model does not read: {text}")
    return hidden


def _digest(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _with_digests(preview: Preview) -> Preview:
    """Returns the preview with a digest of its effects, followed by one of its visible part.

    The second digest does not cover the call's id or the enclosing tools.
    """
    effects = preview.digest.partition(".")[0]
    shown = asdict(replace(preview, digest=effects, call_id="", inside=()))
    return replace(preview, digest=f"{effects}.{_digest(shown)}")


def _readable_arguments(arguments: str) -> str:
    """Returns arguments on one line, without escapes that could hide words from the reviewer.

    Numbers keep all their digits.
    """
    try:
        json.loads(arguments, parse_int=str)  # accepts integers of any length
    except (ValueError, RecursionError):
        return arguments
    return _JSON_PART.sub(_readable_part, arguments)


def _readable_part(part: re.Match[str]) -> str:
    if part[0].startswith('"'):
        return _json(json.loads(part[0]))
    return "" if part[0].isspace() else f"{part[0]} "


def _text_lines(language: str, text: str) -> list[str]:
    """Returns the lines of a text; free text is indented, so that it cannot imitate a heading."""
    margin = "  " if language == "text" else ""
    return [margin + line for line in text.rstrip("\n").split("\n")]


def _fenced(language: str, text: str) -> list[str]:
    fence = "`" * max(longest_run(text) + 1, 3)
    return ["", fence + language, *_text_lines("", text), fence, ""]
