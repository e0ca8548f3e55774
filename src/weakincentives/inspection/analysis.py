"""Checks a prompt for errors, and for text that is likely to mislead the model or waste tokens.

The checks do not need a model. They use only the smallest disclosure states in which each text is
visible, one for each summarized section, because opening more sections only adds tools.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import getclosurevars, isfunction
from typing import Literal

from ..prompt.conditions import BoundSelector
from ..prompt.errors import PromptRenderError
from ..prompt.function_tools import FunctionHandler
from ..prompt.overrides.apply import apply_overrides
from ..prompt.overrides.descriptors import param_texts
from ..prompt.registry import RegistrySnapshot, SectionNode
from ..prompt.sections import MarkdownSection, ParamsByType, ParamsType, Section
from ..prompt.sizes import measure
from ..prompt.template import AnyPrompt, AnyTemplate, PromptTemplate
from ..prompt.text_template import compiled
from ..prompt.tool import AnyTool
from ..prompt.walk import PromptView, VisibleSections, tools_of
from ..protocols import StateView
from ..record_types import build, field_names, is_typed_dict
from ..resources import ResourceRegistry
from ..resources.bindings import kind_name
from ..runtime.events import SectionTexts
from ..visibility import SectionDecisions, SectionPath, SectionVisibility

__all__ = ["SEVERITIES", "Finding", "Report", "Severity", "analyze"]

type Severity = Literal["error", "warning"]
"""Sections with an error cannot work; those with a warning may mislead or waste tokens."""

SEVERITIES: Mapping[str, Severity] = {
    "cannot-render": "error",
    "cannot-check": "warning",
    "tool-not-enabled": "error",
    "tool-not-open": "warning",
    "description-missing": "warning",
    "description-too-long": "warning",
    "docstring-wrong": "warning",
    "param-undescribed": "warning",
    "effects-not-isolated": "warning",
    "param-in-braces": "warning",
    "param-unused": "warning",
    "never-enabled": "warning",
    "override-stale": "warning",
    "summary-missing": "warning",
    "summary-too-long": "warning",
    "session-first": "warning",
    "source": "warning",
}

_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
_TOOL_NAME = re.compile(r"(?<!`)`([a-z0-9_-]{1,64})(?:\([^`\n]*\))?`(?!`)")
_BRACES = re.compile(r"(?<!\$)\{\{?\s*(\w+)\s*\}")
_LONG_DESCRIPTION = 200  # characters, which are part of every request
_STALE = {"changed": "has changed", "gone": "is gone", "fixed": "accepts none"}

type _Texts = Mapping[SectionPath, SectionTexts]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that the author may want to fix; `code` is a key of `SEVERITIES`."""

    code: str
    section_path: SectionPath
    severity: Severity
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """The findings for the prompt `ns/key` in all checked disclosure `states`."""

    prompt: str
    states: int
    findings: tuple[Finding, ...]


def analyze(target: AnyTemplate | AnyPrompt, *, session: StateView | None = None) -> Report:
    """Checks every text that the model can see; `serde.dump` converts the report to JSON.

    If params are not bound and cannot be created without arguments, the texts contain their field
    names instead. `session` is passed to selectors that read it.
    """
    prompt = target.bind() if isinstance(target, PromptTemplate) else target
    template, registry, stored = prompt.template, prompt.template.registry, prompt.overrides
    if stored is not None:
        registry = apply_overrides(registry, stored.texts)
    placeholders = _placeholders(registry, prompt.params)
    view = PromptView(
        registry=registry,
        params={**prompt.params, **placeholders},
        decisions=SectionDecisions({}, {}),
        session=session,
        disclosure=template.disclosure,
    )
    findings = [*_disabled(registry), *_descriptions(registry), *_params(registry)]
    findings += _stale_overrides(prompt)
    findings += _previews(registry, prompt.resources.registry)
    findings += [
        _finding("source", node.path, message, remedy)
        for node in registry.sections
        for message, remedy in node.section.problems()
    ]
    states: list[VisibleSections] = []
    failures = list(_failures(view, placeholders))
    if not failures:
        texts = {section.path: section for section in measure(view)}
        states = [
            view.with_visibility(dict.fromkeys(paths, _FULL)).visible_sections()
            for paths in view.minimal_expansions()
        ]
        findings += _tool_names(view, states, texts)
        findings += _summaries(registry, texts)
        findings += _prefix(registry, texts)
    findings += dict.fromkeys(failures)
    return Report(f"{template.ns}/{template.key}", len(states), tuple(findings))


def _finding(code: str, path: SectionPath, message: str, remedy: str) -> Finding:
    return Finding(code, path, SEVERITIES[code], message, remedy)


def _placeholders(registry: RegistrySnapshot, bound: ParamsByType) -> ParamsByType:
    """Creates an instance of each missing params type, whose values are field names in braces."""
    instances: dict[ParamsType, object] = {}
    for node in registry.sections:
        kind = node.params_type
        if kind is None or kind in bound or node.default_params is not None:
            continue
        try:
            build(kind)
        except Exception:  # fields are missing, or __post_init__ rejects the placeholders
            texts = {name: f"${name}" for name in field_names(kind)}
            instances[kind] = texts if is_typed_dict(kind) else _with_attributes(kind, texts)
    return instances


def _with_attributes(kind: ParamsType, attributes: Mapping[str, str]) -> object:
    instance = object.__new__(kind)
    for name, value in attributes.items():
        object.__setattr__(instance, name, value)
    return instance


def _disabled(registry: RegistrySnapshot) -> Iterator[Finding]:
    for node in registry.sections:
        if node.enabled is False:
            message, remedy = "it is never enabled", "enable it, or remove it"
            yield _finding("never-enabled", node.path, message, remedy)


def _descriptions(registry: RegistrySnapshot) -> Iterator[Finding]:
    """Finds tools with missing or too long descriptions, and docstrings that describe others."""
    for name, path in registry.tool_paths.items():
        tool = registry.get_tool(name)
        if tool is None:
            continue
        subject = f"its tool {_shown(tool)}"
        if tool.description == name:
            message = f"{subject} has no description, so the model sees only its name"
            remedy = "give the handler a docstring, or pass description="
            yield _finding("description-missing", path, message, remedy)
        if isinstance(tool.handler, FunctionHandler):
            for problem, remedy in tool.handler.problems():
                yield _finding("docstring-wrong", path, f"{subject}: {problem}", remedy)
        if tool.schema is not None:  # an external JSON Schema keeps its descriptions
            continue
        if bare := [f"`{param}`" for param, text in param_texts(tool).items() if not text]:
            message = f"{subject} has parameters without a description: {', '.join(bare)}"
            remedy = "describe them in the docstring, or as Annotated[…, Field(description=…)]"
            yield _finding("param-undescribed", path, message, remedy)
        if (length := len(tool.description)) > _LONG_DESCRIPTION:
            size = f"{length:,} characters, which every request contains"
            message = f"the description of {subject} has {size}"
            remedy = f"shorten it to {_LONG_DESCRIPTION}, and move the rest to the section's text"
            yield _finding("description-too-long", path, message, remedy)


def _shown(tool: AnyTool) -> str:
    """Returns the name of a tool, and where its function is defined."""
    line = f" ({tool.handler.line})" if isinstance(tool.handler, FunctionHandler) else ""
    return f"`{tool.name}`{line}"


def _previews(registry: RegistrySnapshot, resources: ResourceRegistry) -> Iterator[Finding]:
    """Finds handlers that run before approval but use a resource that cannot be forked."""
    bound = [it.protocol for it in resources.bindings if not hasattr(it.protocol, "fork")]
    remedy = "use approval='arguments', or give it fork() and merge()"
    for name, path in registry.tool_paths.items():
        tool = registry.get_tool(name)
        handler = getattr(tool.handler, "__func__", tool.handler) if tool else None  # unbound
        if tool is None or tool.approval != "effects":
            continue
        unforkable, values = bound, []
        if isinstance(handler, FunctionHandler):  # its parameters say what it uses, bound or not
            values = unforkable = [it for it in handler.resources if not hasattr(it, "fork")]
        elif isfunction(handler):
            used = getclosurevars(handler)
            values = [*used.globals.values(), *used.nonlocals.values()]
        for kind in unforkable:
            if any(value is kind for value in values):
                message = f"its tool `{name}` runs before its effects are approved, and uses "
                message += f"{kind_name(kind)}, which has no fork()"
                yield _finding("effects-not-isolated", path, message, remedy)


def _params(registry: RegistrySnapshot) -> Iterator[Finding]:
    """Finds params fields in braces, which are not substituted, and fields that no text uses."""
    unused = {kind: set(field_names(kind)) for kind in registry.params_types}
    all_names = set[str]().union(*unused.values())
    first: dict[ParamsType, SectionPath] = {}
    for node in registry.sections:
        kind = node.params_type
        names = all_names if kind is None else field_names(kind)
        texts = (node.body_override, node.summary_override, *node.section.templates())
        texts = () if node.section.literal else texts
        for name in dict.fromkeys(_BRACES.findall("\n".join(filter(None, texts)))):
            if name in names:
                message = f"its text has {{{name}}}, which is not replaced"
                remedy = f"write ${name}" if kind else f"write ${name} in a section with the params"
                yield _finding("param-in-braces", node.path, message, remedy)
        if kind is not None:
            first.setdefault(kind, node.path)
            for text in filter(None, texts):
                unused[kind] -= compiled(text).names
            if _code_reads_params(node):
                unused[kind].clear()
    for kind, path in first.items():
        if fields := sorted(unused[kind]):
            message = f"no text uses {', '.join(fields)} of {kind.__name__}"
            yield _finding("param-unused", path, message, f"write ${fields[0]}, or remove it")


def _code_reads_params(node: SectionNode) -> bool:
    """Returns whether a condition or rendering method may read a section's params."""
    kind = type(node.section)
    return (
        kind.render_body is not MarkdownSection.render_body
        or kind.render_summary is not MarkdownSection.render_summary
        or any(selector.needs_params for selector in _selectors(node))
    )


def _selectors(node: SectionNode) -> list[BoundSelector]:
    return [item for item in (node.enabled, node.visibility) if isinstance(item, BoundSelector)]


def _stale_overrides(prompt: AnyPrompt) -> Iterator[Finding]:
    for stale in prompt.overrides.stale if prompt.overrides is not None else ():
        text = prompt.descriptor.texts.get(stale.id)
        reason = f"the code's own text {_STALE[stale.reason]}"
        message = f"the stored override of {stale.id} does not apply: {reason}"
        yield _finding("override-stale", text.path if text else (), message, "rebase or delete it")


def _failures(view: PromptView, placeholders: ParamsByType) -> Iterator[Finding]:
    """Finds sections whose condition or text raises an error."""
    for node in view.registry.sections:
        try:
            if view.is_enabled(node):
                view.visibility_of(node)
                for visibility in SectionVisibility:
                    view.render({node: visibility})
        except PromptRenderError as error:
            failed = view.registry.get_section(error.section_path or ()) or node
            if failed.params_type in placeholders and error.placeholder is None:
                reason = error.message.rstrip(".")
                message = f"it cannot be checked, so the prompt was not checked: {reason}"
                kind = failed.params_type.__name__ if failed.params_type else ""
                remedy = f"analyze a prompt to which a {kind} is bound"
                yield _finding("cannot-check", failed.path, message, remedy)
            else:
                remedy = "correct the section, or bind params that it accepts"
                yield _finding("cannot-render", failed.path, str(error), remedy)


def _tool_names(
    view: PromptView, states: list[VisibleSections], texts: _Texts
) -> Iterator[Finding]:
    """Finds texts that name a tool that the model cannot call at that point."""
    paths = view.registry.tool_paths
    seen: set[tuple[SectionPath, SectionVisibility]] = set()
    for sections in states:
        callable_tools = {tool.name for tool in tools_of(sections)}
        for node, visibility in sections.items():
            path = node.path
            if (path, visibility) in seen:
                continue
            seen.add((path, visibility))
            section = texts[path]
            text = section.summary or ""
            if visibility is _FULL:
                text = "\n".join([section.full, *section.tools.values()])
            for name in dict.fromkeys(_TOOL_NAME.findall(text)):
                owner = paths.get(name)
                if owner is None or name in callable_tools:
                    continue
                if visibility is _SUMMARY and owner[: len(path)] == path:
                    continue  # a summary can name its section's tools
                subject = f"its {visibility.value} text names the tool `{name}` of section"
                message = f"{subject} {'.'.join(owner)!r}, which "
                if owner in texts:
                    message += "may not be open then"
                    remedy = "move the sentence there, or show that section in full"
                    yield _finding("tool-not-open", path, message, remedy)
                else:
                    message += "is not enabled"
                    yield _finding("tool-not-enabled", path, message, "enable it")


def _summaries(registry: RegistrySnapshot, texts: _Texts) -> Iterator[Finding]:
    for node in registry.sections:
        section = texts.get(node.path)
        if section is None or section.summary is None or node.visibility is _FULL:
            continue
        own_code = type(node.section).render_summary is not Section.render_summary
        if node.section.summary is None and not own_code:
            message = "it can be summarized but has no summary"
            remedy = "describe in summary= when the section is needed"
            yield _finding("summary-missing", node.path, message, remedy)
        elif len(section.summary) >= section.expanded_size:
            summary = f"its summary and the line on opening it have {len(section.summary):,}"
            message = f"{summary} characters, and the hidden text has {section.expanded_size:,}"
            remedy = "shorten it, or show the section in full"
            yield _finding("summary-too-long", node.path, message, remedy)


def _prefix(registry: RegistrySnapshot, texts: _Texts) -> Iterator[Finding]:
    """Finds text that depends on the session before text that does not.

    A provider's cache reuses a prompt only up to the first change.
    """
    shown = {(): _FULL, **{path: section.visibility for path, section in texts.items()}}
    nodes = [
        node
        for node in registry.sections
        if shown.get(node.path)
        or (shown.get(node.path[:-1]) is _FULL and isinstance(node.enabled, BoundSelector))
    ]
    changing = next((node for node in nodes if _reads_session(node)), None)
    if changing is None:
        return
    after = [node for node in nodes if node.index > changing.index and not _reads_session(node)]
    stable = sum(len(texts[node.path].shown) for node in after if node.path in texts)
    if stable:
        message = f"it depends on the session and precedes {stable:,} characters that do not"
        remedy = f"move it after {after[-1].key!r}, so that the provider can reuse its cache"
        yield _finding("session-first", changing.path, message, remedy)


def _reads_session(node: SectionNode) -> bool:
    return any(selector.needs_session for selector in _selectors(node))
