"""What the command line names: a prompt, its params, sections to open, an adapter; each mistake is
a `UsageError`.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

from .. import serde
from ..errors import SerdeError, ValidationIssue
from ..prompt.overrides.store import LocalPromptOverridesStore
from ..prompt.prompt import Prompt
from ..prompt.template import PromptTemplate
from ..visibility import SectionPath, SectionVisibility
from .output import in_one_line

__all__ = [
    "Open",
    "Params",
    "Set",
    "Summary",
    "Tag",
    "Target",
    "UsageError",
    "bound_prompt",
    "how_to_set",
    "loaded",
    "opened",
    "tell_unknown_tag",
    "text_in",
]

Target = Annotated[
    str, Argument(help="A template, a prompt, or a function that gives one: package.module:name.")
]
Params = Annotated[
    Path | None, Option(help="A JSON or YAML file of params: {Type: {field: value}}.")
]
Set = Annotated[
    list[str] | None,
    Option("--set", help="One field of the params: Type.field=value, or field=value. Repeatable."),
]
Open = Annotated[
    list[str] | None,
    Option("--open", help="Key of a section to show in full, as its summary says. Repeatable."),
]
Tag = Annotated[
    str | None, Option(help="Lay the overrides that are stored under this tag over the prompt.")
]
Summary = Annotated[
    list[str] | None, Option(help="Key of a section to show summarized. Repeatable.")
]


class UsageError(Exception):
    """The command was asked for something that cannot be done; the text is for its user."""


def loaded(name: str, what: str) -> Any:  # Any: whatever a module holds
    """What `package.module:name` stands for, looked up from the current directory as `python -m`
    does it.
    """
    module_name, colon, attributes = name.partition(":")
    if not (module_name and colon and attributes):
        raise UsageError(f"{name!r} names no {what}; write it as package.module:name")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module_name)
    except (Exception, SystemExit) as error:  # the module's own code
        remedy = (
            "; run wink where it can be imported" if isinstance(error, ModuleNotFoundError) else ""
        )
        raise UsageError(
            f"importing {module_name!r} failed: {type(error).__name__}: {error}{remedy}"
        ) from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            kinds = PromptTemplate | Prompt
            has = ", ".join(
                key
                for key, value in getattr(found, "__dict__", {}).items()
                if isinstance(value, kinds)
            )
            raise UsageError(
                f"{name!r}: there is no {attribute!r}{f'; prompts there are {has}' if has else ''}"
            )
        found = getattr(found, attribute)
    return found


def bound_prompt(
    target: str,
    params: Path | None = None,
    settings: Iterable[str] | None = None,
    tag: str | None = None,
) -> Prompt[Any]:
    """The prompt that `target` names, with the params of the file and of `Type.field=value`
    settings bound.

    With a `tag` the overrides stored under it in this repository replace texts.
    """
    found = loaded(target, "prompt")
    if callable(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:  # the author's own code
            raise UsageError(
                f"{target!r} cannot be called: {type(error).__name__}: {error}"
            ) from error
    if isinstance(found, PromptTemplate):
        found = found.bind()
    if not isinstance(found, Prompt):
        raise UsageError(
            f"{target!r} is {type(found).__name__}; name a PromptTemplate, a Prompt or a function of no params"
        )
    if tag is not None:
        plain, store = found, LocalPromptOverridesStore()
        tell_unknown_tag(store, plain, tag)
        found = Prompt(plain.template, overrides_store=store, overrides_tag=tag)
        found.bind(*plain.params.values(), resources=plain.resources.registry)
    kinds = found.template.registry.params_types
    named = Counter(kind.__name__ for kind in kinds)
    # Any: params of every type.
    types: dict[str, type[Any]] = {
        kind.__name__
        if named[kind.__name__] == 1
        else f"{kind.__module__}.{kind.__qualname__}": kind
        for kind in kinds
    }
    given: dict[str, dict[str, object]] = {}
    for name, values in (_read(params) if params else {}).items():
        given[_known(name, types, str(params))] = dict(values)
    for setting in settings or ():
        kind, field, value = _setting(setting, types)
        given.setdefault(kind, {})[field] = value
    issues: list[ValidationIssue] = []
    for name, values in given.items():
        bound = found.params.get(types[name])
        try:
            whole = values if bound is None else {**json.loads(serde.dump_json(bound)), **values}
            found.bind(serde.parse(types[name], whole))
        except SerdeError as error:
            issues += [
                ValidationIssue((name, *fault.path), fault.message) for fault in error.issues
            ]
    if issues:
        raise SerdeError("params", tuple(issues))
    return found


def how_to_set(kind: type) -> str:
    """What to write on the command line where params of this type are missing."""
    field = next(iter(get_type_hints(kind)), "field")
    return f"give them by --set {kind.__name__}.{field}=…, or by --params"


def tell_unknown_tag(store: LocalPromptOverridesStore, prompt: Prompt[Any], tag: str) -> None:
    """Says on standard error that nothing is stored under `tag` while there is something under
    others.
    """
    tags = sorted(one.tag for one in store.list() if (one.ns, one.key) == (prompt.ns, prompt.key))
    if tags and tag not in tags:
        note = f"nothing is stored for {prompt.ns}/{prompt.key} under tag {tag!r}; tags there: {', '.join(tags)}"
        sys.stderr.write(f"wink: {in_one_line(note)}\n")


def opened(
    prompt: Prompt[Any], opening: Iterable[str] | None, summarized: Iterable[str] | None
) -> dict[SectionPath, SectionVisibility]:
    """Visibility overrides for the named sections; what lies around an opened one opens too."""
    registry = prompt.template.registry
    found: dict[SectionPath, SectionVisibility] = {}
    for keys, visibility in (
        (summarized, SectionVisibility.SUMMARY),
        (opening, SectionVisibility.FULL),
    ):
        for key in keys or ():
            node = registry.get_section_by_key(key)
            if node is None:
                known = ", ".join(one.key for one in registry.sections)
                raise UsageError(f"no section has the key {key!r}; there are {known}")
            above = registry.ancestors(node) if visibility is SectionVisibility.FULL else ()
            found |= dict.fromkeys([one.path for one in (*above, node)], visibility)
    return found


def text_in(path: Path) -> str:
    """The text of a file that the command line names; `-` is standard input."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: {error}") from error


def _read(path: Path) -> Mapping[str, Mapping[str, object]]:
    text = text_in(path)
    try:
        if path.suffix in {".yaml", ".yml"}:
            import yaml

            found: object = yaml.safe_load(text) or {}
        else:
            serde.check_unique_keys("params", text)
            found = json.loads(text)
    except Exception as error:  # of either parser
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise UsageError(f"{path}: params are written as {{Type: {{field: value}}}}")
    return found


def _known(name: str, types: Mapping[str, type[Any]], where: str) -> str:
    if name not in types:
        raise UsageError(
            f"{where}: the prompt has no params type {name!r}; it has {', '.join(sorted(types)) or 'none'}"
        )
    return name


def _setting(setting: str, types: Mapping[str, type[Any]]) -> tuple[str, str, object]:
    """Type, field and value of `Type.field=value`; a value that is no text of the field's type is
    read as JSON.
    """
    place, equals, text = setting.partition("=")
    name, dot, field = place.rpartition(".")
    if not equals:
        raise UsageError(f"--set {setting!r}: write Type.field=value")
    if not dot:
        owners = [kind for kind, of in types.items() if field in get_type_hints(of)]
        if len(owners) != 1:
            has = (
                ", ".join(
                    f"{kind}.{one}"
                    for kind, of in sorted(types.items())
                    for one in get_type_hints(of)
                )
                or "none"
            )
            raise UsageError(
                f"--set {setting!r}: {len(owners)} params types have a field {field!r}; there are {has}"
            )
        [name] = owners
    hint = get_type_hints(
        types[_known(name, types, f"--set {setting!r}")], include_extras=True
    ).get(field, str)
    with suppress(SerdeError):
        serde.parse(hint, text)
        return name, field, text
    with suppress(ValueError):
        return name, field, json.loads(text)
    return name, field, text
