"""Loads the objects that the command line names: prompts, params, sections, adapters, files."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields as fields_of
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, get_type_hints

from typer import Argument, Option

from .. import serde
from ..errors import SerdeError, ValidationIssue
from ..model_settings import ModelSettings
from ..prompt.overrides.store import LocalPromptOverridesStore
from ..prompt.sections import ParamsType, slug
from ..prompt.template import AnyPrompt, AnyTemplate, Prompt, PromptTemplate
from ..record_types import is_record_type, requires
from ..signatures import AnyFunction
from ..visibility import SectionPath, SectionVisibility
from .printing import single_line

__all__ = [
    "Open",
    "Params",
    "Set",
    "Summary",
    "Tag",
    "Target",
    "UsageError",
    "how_to_set",
    "load",
    "load_prompt",
    "read_text",
    "visibility_overrides",
    "warn_of_unknown_tag",
]

Target = Annotated[
    str,
    Argument(
        help="A template, a prompt, or a function that returns one: package.module:name. "
        "Can also be a folder of skills."
    ),
]
Params = Annotated[
    Path | None, Option(help="A JSON or YAML file of params: {Type: {field: value}}.")
]
Set = Annotated[
    list[str] | None,
    Option("--set", help="Set one params field: Type.field=value, or field=value. Repeatable."),
]
Open = Annotated[
    list[str] | None,
    Option("--open", help="Key of a section to show in full, as in its summary. Repeatable."),
]
Summary = Annotated[
    list[str] | None, Option(help="Key of a section to show summarized. Repeatable.")
]
Tag = Annotated[str | None, Option(help="Apply the overrides stored under this tag.")]

_SETTINGS = {field.name for field in fields_of(ModelSettings) if field.init}

type _Types = Mapping[str, ParamsType]


class UsageError(Exception):
    """The command cannot be executed with these arguments; the message explains why."""


def load(name: str, kind: str) -> object:
    """Imports the object at `package.module:name`, also from the current directory.

    `kind` describes the expected object in error messages.
    """
    module_name, _, attributes = name.partition(":")
    if attributes and module_name.endswith(".py"):
        module = ".".join(Path(module_name).with_suffix("").parts)
        raise UsageError(f"{name!r} is a file; pass its module, as in {module}:{attributes}")
    if not (module_name and attributes):
        module = ".".join(Path(module_name.removesuffix(".py")).parts) or "package.module"
        raise UsageError(
            f"{name!r} must name the {kind}; write it as package.module:name, such as "
            f"{module}:{attributes or 'template'}"
        )
    if "" not in sys.path:  # like `python -m`
        sys.path.insert(0, "")
    try:
        target: object = import_module(module_name)
    except (Exception, SystemExit) as error:  # raised by the module's own code
        missing = isinstance(error, ModuleNotFoundError)
        remedy = "; run wink where it can be imported" if missing else ""
        cause = f"{type(error).__name__}: {error}{remedy}"
        raise UsageError(f"importing {module_name!r} failed: {cause}") from error
    for attribute in attributes.split("."):
        try:
            target = getattr(target, attribute)
        except AttributeError:
            known = _known_prompts(target) if kind == "prompt" else ""
            raise UsageError(f"{name!r}: cannot find {attribute!r}{known}") from None
        except Exception as error:  # from a module with lazy imports
            cause = f"{type(error).__name__}: {error}"
            raise UsageError(f"importing {name!r} failed: {cause}") from error
    return target


def _known_prompts(target: object) -> str:
    """Returns the names of the prompts in a module, without triggering its lazy imports."""
    values = dict(getattr(target, "__dict__", {}))  # a copy, because it may change in the meantime
    # `isinstance` would ask a lazy import's placeholder for its class, which triggers the import.
    prompts = [key for key in values if issubclass(type(values[key]), PromptTemplate | Prompt)]
    return f"; prompts there are {', '.join(prompts)}" if prompts else ""


def load_prompt(
    target: str,
    params: Path | None = None,
    settings: Iterable[str] | None = None,
    tag: str | None = None,
) -> AnyPrompt:
    """Loads the prompt that `target` names.

    Binds the params from the file `params`; the `Type.field=value` settings take precedence. With a
    `tag`, applies the overrides that are stored in the repository under that tag.
    """
    prompt = _find_prompt(target)
    if tag is not None:
        store = LocalPromptOverridesStore()
        warn_of_unknown_tag(store, prompt, tag)
        resources, bound = prompt.resources.registry, prompt.params.values()
        prompt = Prompt(prompt.template, overrides_store=store, overrides_tag=tag)
        prompt.bind(*bound, resources=resources)
    types = _params_types(prompt)
    fields: dict[str, dict[str, object]] = {}
    for name, values in (_read_params(params) if params else {}).items():
        fields[_check_known(name, types, str(params))] = dict(values)
    for setting in settings or ():
        name, field, value = _parse_setting(setting, types)
        fields.setdefault(name, {})[field] = value
    issues: list[ValidationIssue] = []
    for name, values in fields.items():
        bound_params = prompt.params.get(types[name])
        before = {} if bound_params is None else json.loads(serde.dump_json(bound_params))
        try:
            prompt.bind(serde.parse(types[name], {**before, **values}))
        except SerdeError as error:
            issues += [
                ValidationIssue((name, *issue.path), issue.message) for issue in error.issues
            ]
    if issues:
        raise SerdeError("params", tuple(issues))
    return prompt


def _find_prompt(target: str) -> AnyPrompt:
    prompt = _load_skills(target) if Path(target).is_dir() else load(target, "prompt")
    if callable(prompt):
        _check_parameters(target, prompt)
        try:
            prompt = prompt()
        except (Exception, SystemExit) as error:  # raised by the user's own code
            cause = f"{type(error).__name__}: {error}"
            raise UsageError(f"calling {target!r} failed: {cause}") from error
    if isinstance(prompt, PromptTemplate):
        prompt = prompt.bind()
    if not isinstance(prompt, Prompt):
        raise UsageError(
            f"{target!r} must be a PromptTemplate, a Prompt or a function without parameters that "
            f"returns one, got {type(prompt).__name__}"
        )
    return prompt


def _check_parameters(target: str, function: AnyFunction) -> None:
    """Raises `UsageError` for a function that cannot be called without arguments."""
    try:
        parameters = signature(function, eval_str=True).parameters.values()
    except (ValueError, TypeError, NameError):  # the call will report any problem
        return
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        names = ", ".join(parameter.name for parameter in needed)
        types = [parameter.annotation for parameter in needed]
        remedies = [f"; {how_to_set(kind)}" for kind in types if is_record_type(kind)]
        raise UsageError(
            f"cannot call {target!r} because it requires {names}; pass the prompt or template "
            f"that it binds{''.join(remedies)}"
        )


def _load_skills(folder: str) -> AnyTemplate:
    from ..contrib.skills import skills

    sections = skills(folder)
    if not sections:
        skills(folder, strict=True)  # raises the problems of skipped skills
        raise UsageError(f"cannot find a skill in {folder!r}: no folder has a SKILL.md")
    key = slug(Path(folder).resolve().name) or "skills"
    return PromptTemplate(ns="skills", key=key, sections=sections, closable=True)


def _params_types(prompt: AnyPrompt) -> _Types:
    """Returns the params types by name; ambiguous names are prefixed with their module."""
    types = prompt.template.registry.params_types
    count = Counter(kind.__name__ for kind in types)
    return {
        kind.__name__
        if count[kind.__name__] == 1
        else f"{kind.__module__}.{kind.__qualname__}": kind
        for kind in types
    }


def how_to_set(params_type: type) -> str:
    """Returns the command-line remedy for missing params of this type."""
    names, required = list(get_type_hints(params_type)), requires(params_type)
    needed = [name for name in names if name in required]
    settings = [f"--set {params_type.__name__}.{name}=…" for name in needed or names[:1]]
    return f"pass them by {' '.join(settings)}, or by --params"


def warn_of_unknown_tag(store: LocalPromptOverridesStore, prompt: AnyPrompt, tag: str) -> None:
    """Prints a warning on stderr if the prompt has stored overrides, but none under `tag`."""
    name = prompt.ns, prompt.key
    tags = sorted(stored.tag for stored in store.list() if (stored.ns, stored.key) == name)
    if tags and tag not in tags:
        known = f"tags there: {', '.join(tags)}"
        text = f"nothing is stored for {prompt.ns}/{prompt.key} under tag {tag!r}; {known}"
        sys.stderr.write(f"wink: {single_line(text)}\n")


def visibility_overrides(
    prompt: AnyPrompt, open_: Iterable[str] | None, summary: Iterable[str] | None
) -> dict[SectionPath, SectionVisibility]:
    """Returns overrides that show these sections and open the parents of opened sections."""
    registry = prompt.template.registry
    overrides: dict[SectionPath, SectionVisibility] = {}
    full, summarized = SectionVisibility.FULL, SectionVisibility.SUMMARY
    for keys, visibility in ((summary, summarized), (open_, full)):
        for key in keys or ():
            node = registry.get_section_by_key(key)
            if node is None:
                known = ", ".join(section.key for section in registry.sections)
                raise UsageError(f"no section has the key {key!r}; use one of {known}")
            around = registry.ancestors(node) if visibility is full else ()
            overrides |= dict.fromkeys([section.path for section in (*around, node)], visibility)
    return overrides


def read_text(path: Path) -> str:
    """Reads a file that the command line names, or standard input for `-`.

    Removes a byte order mark, which some editors on Windows add.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        return text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error


def _read_params(path: Path) -> Mapping[str, Mapping[str, object]]:
    text = read_text(path)
    try:
        if path.suffix in {".yaml", ".yml"}:
            import yaml

            params: object = yaml.safe_load(text) or {}
        else:
            serde.check_unique_keys("params", text)
            params = json.loads(text)
    except Exception as error:  # raised by either parser
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(params, dict) or not all(isinstance(row, dict) for row in params.values()):
        raise UsageError(f"{path}: params must be {{Type: {{field: value}}}}")
    return params


def _check_known(name: str, types: _Types, source: str) -> str:
    if not types:
        raise UsageError(f"{source}: the prompt takes no params")
    if name not in types:
        known = ", ".join(sorted(types))
        raise UsageError(f"{source}: the prompt has no params type {name!r}; use one of {known}")
    return name


def _parse_setting(setting: str, types: _Types) -> tuple[str, str, object]:
    """Splits `Type.field=value`; parses the value as JSON unless the field accepts the text."""
    source = f"--set {setting!r}"
    place, equals, text = setting.partition("=")
    name, dot, field = place.rpartition(".")
    if not equals:
        raise UsageError(f"{source} must be Type.field=value")
    fields = {key: get_type_hints(kind, include_extras=True) for key, kind in types.items()}
    if place in _SETTINGS and not any(place in hints for hints in fields.values()):
        raise UsageError(f"{source}: the params have no {place}; for the model, pass --setting")
    if not dot and fields:
        owners = [owner for owner, hints in fields.items() if field in hints]
        if len(owners) != 1:
            known = [f"{owner}.{key}" for owner, hints in sorted(fields.items()) for key in hints]
            count = f"{len(owners)} params types have a field {field!r}"
            raise UsageError(f"{source}: {count}; use one of {', '.join(known)}")
        [name] = owners
    hint = fields[_check_known(name, types, source)].get(field, str)
    with suppress(SerdeError):
        serde.parse(hint, text)
        return name, field, text
    with suppress(ValueError):
        return name, field, json.loads(text)
    return name, field, text
