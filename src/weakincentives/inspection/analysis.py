"""What can be said of a prompt without a model: what cannot work, and what is likely to mislead or
to cost for nothing.

Everything is read off the one walk: a state of disclosure is a `PromptView` with some sections
opened. Of all states only the smallest ones that show a text are looked at, one for each summarized
section: opening more only adds tools.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ..prompt.conditions import BoundSelector
from ..prompt.errors import PromptRenderError
from ..prompt.overrides.apply import apply_overrides
from ..prompt.prompt import Prompt
from ..prompt.registry import RegistrySnapshot, SectionNode
from ..prompt.sections import Section
from ..prompt.sizes import measure
from ..prompt.template import PromptTemplate
from ..prompt.walk import PromptView, VisibleSections, tools_of
from ..protocols import StateView
from ..runtime.events import SectionTexts
from ..visibility import SectionPath, SectionVisibility

__all__ = ["Finding", "Report", "Severity", "analyze"]

type Severity = Literal["error", "warning"]
"""Cannot work; likely to mislead the model or to cost for nothing."""

_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
_NAMED = re.compile(r"(?<!`)`([a-z0-9_-]{1,64})(?:\([^`\n]*\))?`(?!`)")
_LONG_DESCRIPTION = 200  # characters; every request pays for them
_STALE = {"changed": "has changed", "gone": "is gone", "fixed": "accepts none"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the author may want to change; `code` names its kind."""

    code: str
    section_path: SectionPath
    severity: Severity
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """What `analyze` found in the prompt `ns/key`, in how many states of disclosure; `serde.dump`
    makes it JSON.
    """

    prompt: str
    states: int
    findings: tuple[Finding, ...]


def analyze(
    target: PromptTemplate[Any] | Prompt[Any], *, session: StateView | None = None
) -> Report:
    """Every check, over all texts that the model can get to see.

    Params that are not bound and cannot be built have their fields stand for themselves in the
    texts. `session` feeds the selectors that read one.
    """
    prompt = target.bind() if isinstance(target, PromptTemplate) else target
    template, registry, stored = prompt.template, prompt.template.registry, prompt.overrides
    if stored is not None:
        registry = apply_overrides(registry, stored.texts)
    nodes = registry.sections
    missing = _stand_ins(nodes, prompt.params)
    params = {**prompt.params, **missing}
    view = PromptView(
        registry=registry, params=params, session=session, disclosure=template.disclosure
    )
    findings = [
        Finding(
            "never-enabled", node.path, "warning", "it is never enabled", "enable it, or remove it"
        )
        for node in nodes
        if node.enabled is False
    ]
    findings += _descriptions(registry)
    for stale in stored.stale if stored is not None else ():
        now = prompt.descriptor.texts.get(stale.id)
        message = f"the stored override of {stale.id} does not apply: the code's own text {_STALE[stale.reason]}"
        findings.append(
            Finding(
                "override-stale", now.path if now else (), "warning", message, "rebase or delete it"
            )
        )
    states: list[VisibleSections] = []
    broken = list(_broken(view, missing))
    if not broken:
        texts = {one.path: one for one in measure(view)}
        states = [
            view.with_visibility(dict.fromkeys(paths, _FULL)).visible_sections()
            for paths in view.minimal_expansions()
        ]
        findings += (
            *_tools_named(view, states, texts),
            *_summaries(view, texts),
            *_prefix(view, texts),
        )
    return Report(f"{template.ns}/{template.key}", len(states), (*findings, *dict.fromkeys(broken)))


# Any: params of every type, each looked up by its own.
def _stand_ins(
    nodes: tuple[SectionNode, ...], bound: Mapping[type[Any], object]
) -> dict[type[Any], object]:
    """An instance for each params type that is missing, whose fields hold their own placeholders."""
    found: dict[type[Any], object] = {}
    for kind in [
        node.params_type
        for node in nodes
        if node.params_type not in bound and node.default_params is None
    ]:
        if kind is not None:
            try:
                kind()
            except Exception:  # fields are missing, or __post_init__ wants other ones
                found[kind] = object.__new__(kind)
                for one in fields(kind):
                    object.__setattr__(found[kind], one.name, f"${one.name}")
    return found


def _descriptions(registry: RegistrySnapshot) -> Iterator[Finding]:
    """Tools whose descriptions hold what belongs into a section."""
    for name, path in registry.tool_paths.items():
        tool = registry.get_tool(name)
        length = 0 if tool is None else len(tool.description)
        if length > _LONG_DESCRIPTION:
            message = f"the description of its tool `{name}` has {length:,} characters, which every request sends"
            remedy = f"say it in {_LONG_DESCRIPTION}, and the rest in the section's text"
            yield Finding("description-too-long", path, "warning", message, remedy)


# Any: see `_stand_ins`
def _broken(view: PromptView, missing: Mapping[type[Any], object]) -> Iterator[Finding]:
    """The sections whose conditions or texts fail."""
    for node in view.registry.sections:
        try:
            if view.is_enabled(node):
                view.visibility_of(node)
                for visibility in SectionVisibility:
                    view.render({node: visibility})
        except PromptRenderError as error:
            place = view.registry.get_section(error.section_path or ()) or node
            if place.params_type in missing and error.placeholder is None:
                message = (
                    f"it cannot be checked, and so the prompt is not: {error.message.rstrip('.')}"
                )
                yield Finding("cannot-check", place.path, "warning", message, _to_bind(place))
            else:
                remedy = "mend the section, or bind params that it can take"
                yield Finding("cannot-render", place.path, "error", str(error), remedy)


def _to_bind(node: SectionNode) -> str:
    return (
        f"analyze a prompt that has a {node.params_type.__name__ if node.params_type else ''} bound"
    )


def _tools_named(
    view: PromptView, states: list[VisibleSections], texts: Mapping[SectionPath, SectionTexts]
) -> Iterator[Finding]:
    """Tools that a text names although they cannot be called while it is read."""
    homes = view.registry.tool_paths
    seen: set[tuple[SectionPath, SectionVisibility]] = set()
    for sections in states:
        tools = {tool.name for tool in tools_of(sections)}
        for path, visibility in [(node.path, how) for node, how in sections.items()]:
            if (path, visibility) in seen:
                continue
            seen.add((path, visibility))
            one = texts[path]
            text = (
                "\n".join([one.full, *one.tools.values()])
                if visibility is _FULL
                else one.summary or ""
            )
            for name in dict.fromkeys(_NAMED.findall(text)):
                home = homes.get(name, path)
                if (
                    name in tools
                    or name not in homes
                    or (visibility is _SUMMARY and home[: len(path)] == path)
                ):
                    continue  # it can be called, it is no tool, or a summary says what it hides
                what = f"its {visibility.value} text names the tool `{name}` of section {'.'.join(home)!r}, which "
                if home in texts:
                    remedy = "move the sentence there, or show that section in full"
                    yield Finding(
                        "tool-not-open", path, "warning", f"{what}may not be open then", remedy
                    )
                else:
                    yield Finding(
                        "tool-not-enabled", path, "error", f"{what}is not enabled", "enable it"
                    )


def _summaries(view: PromptView, texts: Mapping[SectionPath, SectionTexts]) -> Iterator[Finding]:
    for node in view.registry.sections:
        text = texts.get(node.path)
        if text is None or text.summary is None or node.visibility is _FULL:
            continue
        if (
            node.section.summary is None
            and type(node.section).render_summary is Section.render_summary
        ):
            message, remedy = (
                "it can be summarized but has no summary",
                "say in summary= when the section is needed",
            )
            yield Finding("summary-missing", node.path, "warning", message, remedy)
        elif len(text.summary) >= text.expanded_size:
            takes = f"its summary and the line that opens it take {len(text.summary):,} characters"
            message = f"{takes}, and what it hides takes {text.expanded_size:,}"
            yield Finding(
                "summary-too-long",
                node.path,
                "warning",
                message,
                "shorten it, or show the section in full",
            )


def _prefix(view: PromptView, texts: Mapping[SectionPath, SectionTexts]) -> Iterator[Finding]:
    """Text that changes with the session before text that does not: a prefix that a provider has
    cached ends there.
    """
    shown = {(): _FULL, **{path: one.visibility for path, one in texts.items()}}
    nodes = [
        node
        for node in view.registry.sections
        if shown.get(node.path)
        or (shown.get(node.path[:-1]) is _FULL and isinstance(node.enabled, BoundSelector))
    ]
    changing = next((node for node in nodes if _asks_session(node)), None)
    if changing is not None:
        after = [node for node in nodes if node.index > changing.index and not _asks_session(node)]
        stable = sum(len(texts[node.path].shown) for node in after if node.path in texts)
        if stable:
            message = (
                f"it depends on the session and stands before {stable:,} characters that do not"
            )
            remedy = (
                f"put it after {after[-1].key!r}, so that a provider can reuse what it has cached"
            )
            yield Finding("session-first", changing.path, "warning", message, remedy)


def _asks_session(node: SectionNode) -> bool:
    return any(
        isinstance(one, BoundSelector) and one.needs_session
        for one in (node.enabled, node.visibility)
    )
