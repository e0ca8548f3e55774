"""Hypothesis strategies for prompts, and a model of how a tree of sections should be rendered.

A `Plan` is a section as plain data. `sections` builds real sections from plans, with selectors that
record their calls. `expected` walks the same plans recursively, as the specification describes, and
shares no code with `sections`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from string import Template
from typing import Any

from hypothesis import strategies as st

from weakincentives.prompt import MarkdownSection, Section, SectionPath, SectionVisibility, Tool

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Who:
    """Params with one field."""

    name: str = "nobody"


@dataclass(frozen=True)
class Size:
    """Params with two fields."""

    count: int = 0
    unit: str = "items"


@dataclass(frozen=True)
class Nothing:
    """Params of the tools here."""


TEXTS: Mapping[type | None, tuple[str, ...]] = {
    None: ("", "Plain text.", "It costs $$5 and 100%s.", "Two\n\nparagraphs"),
    Who: ("Hello $name.", "${name}${name}", "$$name is $name", "No placeholder"),
    Size: ("$count $unit", "100% of ${count}", "$unit"),
}
FORMS = ("constant", "()", "(session)")
FORMS_WITH_PARAMS = (*FORMS, "(params)", "(params, session)")
KEYS = ("a", "b", "c", "a.b", "b.c", "step-1", "x_2", "0")


@dataclass(frozen=True)
class Plan:
    """A section to build; `enabled` and `visibility` are constants, or returned by a function with
    the signature that the form names.
    """

    key: str
    params: type | None
    text: str
    summary: str | None
    enabled: bool
    enabled_form: str
    visibility: SectionVisibility
    visibility_form: str
    tools: int
    children: "tuple[Plan, ...]"

    @property
    def title(self) -> str:
        return f"Title of {self.key}"

    def tool_names(self, number: str) -> list[str]:
        return [f"tool-{number.replace('.', '-')}-{index}" for index in range(self.tools)]


@dataclass(frozen=True)
class Asked:
    """A selector was called."""

    path: SectionPath
    which: str
    params: object
    session: object


@dataclass(frozen=True)
class Shown:
    """The expected state of a section that a prompt shows."""

    path: SectionPath
    plan: Plan
    number: str
    visibility: SectionVisibility
    part: str
    tools: tuple[str, ...]


@dataclass
class Expected:
    """The expected rendering: the sections in order, and the selectors that had to be called."""

    shown: list[Shown] = field(default_factory=list[Shown])
    asked: list[Asked] = field(default_factory=list[Asked])
    asked_for_suffixes: list[Asked] = field(default_factory=list[Asked])

    @property
    def text(self) -> str:
        return "\n\n".join(section.part for section in self.shown)

    @property
    def tools(self) -> list[str]:
        return [name for section in self.shown for name in section.tools]


# --------------------------------------------------------------------------------------------------
# strategies


@st.composite
def plans(draw: st.DrawFn, depth: int = 2) -> Plan:
    """A section with its subtree."""
    params = draw(st.sampled_from((None, Who, Size)))
    forms = st.sampled_from(FORMS if params is None else FORMS_WITH_PARAMS)
    return Plan(
        key=draw(st.sampled_from(KEYS)),
        params=params,
        text=draw(st.sampled_from(TEXTS[params])),
        summary=draw(st.none() | st.sampled_from(TEXTS[params])),
        enabled=draw(st.sampled_from((True, True, True, False))),
        enabled_form=draw(forms),
        visibility=draw(st.sampled_from((FULL, FULL, SUMMARY))),
        visibility_form=draw(forms),
        tools=draw(st.integers(0, 2)),
        children=draw(forests(depth - 1)) if depth else (),
    )


def forests(depth: int = 2) -> st.SearchStrategy[tuple[Plan, ...]]:
    """Sibling sections whose dotted paths all differ."""
    lists = st.lists(plans(depth), max_size=3, unique_by=lambda plan: plan.key)
    return lists.map(tuple[Plan, ...]).filter(_unambiguous)


def _unambiguous(roots: tuple[Plan, ...]) -> bool:
    dotted = [".".join(path) for path in paths(roots)]
    return len(dotted) == len(set(dotted))


def overrides(roots: Sequence[Plan]) -> st.SearchStrategy[dict[SectionPath, SectionVisibility]]:
    """Visibility overrides for some of the sections."""
    known = sorted(paths(roots))
    if not known:
        return st.just({})
    return st.dictionaries(st.sampled_from(known), st.sampled_from((FULL, SUMMARY)), max_size=4)


def params() -> st.SearchStrategy[list[object]]:
    """Params to bind: none, one or both of the types."""
    return st.tuples(
        st.none() | st.builds(Who, st.text(max_size=8)),
        st.none() | st.builds(Size, st.integers(), st.sampled_from(("$count", "%d", "items"))),
    ).map(lambda pair: [value for value in pair if value is not None])


# --------------------------------------------------------------------------------------------------
# the real sections


def paths(roots: Iterable[Plan], above: SectionPath = ()) -> Iterator[SectionPath]:
    """Yields every path of the tree, in pre-order."""
    for plan in roots:
        yield (*above, plan.key)
        yield from paths(plan.children, (*above, plan.key))


def sections(
    roots: Sequence[Plan],
    asked: list[Asked] | None = None,
    above: SectionPath = (),
    number: str = "",
    *,
    flipped: Collection[SectionPath] = (),
) -> list[Section[Any]]:
    """Returns the sections that `roots` describe; their selectors record their calls in `asked`.

    Selectors of the sections at `flipped`, which may change in the meantime, return the opposite.
    """
    log = [] if asked is None else asked
    built: list[Section[Any]] = []
    for position, plan in enumerate(roots, start=1):
        path, place = (*above, plan.key), f"{number}{position}"
        built.append(
            MarkdownSection(
                title=plan.title,
                key=plan.key,
                template=plan.text,
                summary=plan.summary,
                params_type=plan.params,
                enabled=_selector(
                    plan.enabled_form, plan.enabled, log, path, "enabled", flipped=flipped
                ),
                visibility=_selector(
                    plan.visibility_form, plan.visibility, log, path, "visibility", flipped=flipped
                ),
                tools=[Tool[Nothing, Nothing](name=name) for name in plan.tool_names(place)],
                children=sections(plan.children, log, path, f"{place}.", flipped=flipped),
            )
        )
    return built


# Any: one function creates selectors of all forms and results.
def _selector(
    form: str,
    answer: Any,
    log: list[Asked],
    path: SectionPath,
    which: str,
    *,
    flipped: Collection[SectionPath],
) -> Any:
    other = {True: False, False: True, FULL: SUMMARY, SUMMARY: FULL}[answer]

    def ask(params: object = None, session: object = None) -> object:
        log.append(Asked(path, which, params, session))
        return other if path in flipped else answer

    match form:
        case "constant":
            return answer
        case "()":
            return lambda: ask()  # noqa: PLW0108 - its signature is what matters
        case "(session)":
            return lambda *, session: ask(session=session)
        case "(params)":
            return lambda params: ask(params)  # noqa: PLW0108 - as above
        case _:
            return lambda params, *, session: ask(params, session)


# --------------------------------------------------------------------------------------------------
# the model


def expected(
    roots: Sequence[Plan],
    *,
    bound: Sequence[object] = (),
    visibility: Mapping[SectionPath, SectionVisibility] | None = None,
    session: object = None,
) -> Expected:
    """Returns what a prompt with these sections shows, and the selectors that it must call."""
    model = Expected()
    by_type = {type(value): value for value in bound}
    _expect(model, roots, by_type, visibility or {}, session=session)
    return model


def _expect(
    model: Expected,
    plans: Sequence[Plan],
    bound: Mapping[type, object],
    overrides: Mapping[SectionPath, SectionVisibility],
    *,
    session: object,
    above: SectionPath = (),
    number: str = "",
) -> None:
    for position, plan in enumerate(plans, start=1):
        path, place = (*above, plan.key), f"{number}{position}"
        params = None if plan.params is None else bound.get(plan.params, plan.params())

        def ask(which: str, form: str, path: SectionPath = path, params: object = params) -> None:
            if form != "constant":
                taken_params = params if "params" in form else None
                model.asked.append(
                    Asked(path, which, taken_params, session if "session" in form else None)
                )

        ask("enabled", plan.enabled_form)
        if not plan.enabled:
            continue
        if path not in overrides:
            ask("visibility", plan.visibility_form)
        visibility = overrides.get(path, plan.visibility)
        body = _filled(plan.text if visibility is FULL else plan.summary or "", params)
        if visibility is SUMMARY:
            children: list[str] = []
            for (
                child
            ) in plan.children:  # the suffix names the children that opening the section shows
                of_child = None if child.params is None else bound.get(child.params, child.params())
                if child.enabled_form != "constant":
                    taken_params = of_child if "params" in child.enabled_form else None
                    asked = Asked(
                        (*path, child.key),
                        "enabled",
                        taken_params,
                        session if "session" in child.enabled_form else None,
                    )
                    model.asked_for_suffixes.append(asked)
                if child.enabled:
                    children.append(child.key if not above else ".".join((*path, child.key)))
            suffix = _suffix(path, children)
            body = f"{body}\n\n{suffix}" if body else suffix
        heading = f"{'#' * (len(path) + 1)} {place}. {plan.title}"
        part = f"{heading}\n\n{body}" if body else heading
        tools = tuple(plan.tool_names(place)) if visibility is FULL else ()
        model.shown.append(Shown(path, plan, place, visibility, part, tools))
        if visibility is FULL:
            _expect(
                model,
                plan.children,
                bound,
                overrides,
                session=session,
                above=path,
                number=f"{place}.",
            )


def _filled(text: str, params: object) -> str:
    lines = (
        Template(text).substitute(vars(params) if params is not None else {}).rstrip().split("\n")
    )
    return "\n".join(dropwhile(lambda line: not line.strip(), lines))


def _suffix(path: SectionPath, children: Sequence[str]) -> str:
    key = ".".join(path)
    start, tool = "---\n[This section is summarized.", f'call `read_section` with key "{key}"'
    if not children:
        return f"{start} To view full content, {tool}.]"
    names = ", ".join(children)
    return f"{start} C{tool[1:]} to view full content including subsections: {names}.]"
