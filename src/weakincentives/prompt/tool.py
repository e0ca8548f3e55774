"""Tools are functions that a section makes available to the model."""

import json
import re
from collections.abc import Awaitable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast, get_args

from .. import serde
from ..errors import SerdeError
from ..generics import Parametrized
from ..protocols import DeclaredState
from ..record_types import RECORD_TYPES, is_instance, is_record_type
from .context import AnyEvaluator, BoundPrompt, NestedOptions, ToolContext
from .errors import PromptValidationError
from .handlers import (
    AnyHandler,
    ToolRenderableResult,
    ToolResult,
    check_handler,
    description_of,
    find_types,
)

if TYPE_CHECKING:
    from ..limits import Budget
    from .approval_rules import Approval

__all__ = [
    "MAX_DESCRIPTION",
    "MAY_RUN_ON_FORKS",
    "NON_REPEATABLE",
    "TOOL_NAME",
    "AgentTemplate",
    "AnyTool",
    "AnyToolHandler",
    "Effect",
    "JsonParams",
    "PromptHandler",
    "PromptMessage",
    "Tool",
    "ToolExample",
    "ToolHandler",
    "ToolRenderableResult",
    "ToolResult",
    "check_description",
    "preview_problem",
]

type Effect = Literal["undeclared", "pure", "repeatable", "at_most_once", "transactional"]
"""The effect of running a tool again with the same call.

An `"undeclared"` tool promises nothing: it never runs in parallel or before it is approved, but it
may run again after a restart or a crash. A `"pure"` tool never changes anything. Running a
`"repeatable"` tool twice has the same effect as running it once. An `"at_most_once"` tool must not
run twice. A `"transactional"` tool must not run twice either; in a durable run, its effect is
committed together with the record of the call.
"""

type JsonParams = Mapping[str, serde.Json]
"""The params that the handler of a tool with a JSON Schema receives."""

NON_REPEATABLE: frozenset[Effect] = frozenset({"at_most_once", "transactional"})
MAY_RUN_ON_FORKS: frozenset[Effect] = frozenset({"pure", "repeatable"})
_EFFECTS: tuple[Effect, ...] = get_args(Effect.__value__)
TOOL_NAME = r"[a-z0-9_-]{1,64}"
MAX_DESCRIPTION = 1024  # the providers' limit
_OLDER_DIALECT = re.compile(r'"(nullable|exclusiveM..imum)": true|"items": \[|"additionalItems"')


class ToolHandler[P, R](Protocol):
    """A function or coroutine function that takes params and returns a `ToolResult`."""

    def __call__(
        self, params: P, /, *, context: ToolContext
    ) -> ToolResult[R] | Awaitable[ToolResult[R]]: ...


class ToolExample[P, R](NamedTuple):
    """An example of a tool call and its output, which the tool's section shows to the model."""

    description: str
    input: P
    output: R | EllipsisType = ...
    """The result's value; an example without an output shows only the arguments."""


class AgentSections(Protocol):
    """The sections of a template, for a tool that evaluates it."""

    @property
    def required_params(self) -> AbstractSet[type[object]]: ...
    @property
    def params_types(self) -> AbstractSet[type[object]]: ...
    @property
    def state(self) -> Mapping[type[object], DeclaredState]: ...
    @property
    def effects(self) -> AbstractSet[Effect]: ...
    @property
    def has_non_repeatable_tools(self) -> bool: ...
    def get_tool(self, name: str, /) -> "AnyTool | None": ...


class AgentTemplate[Out](Protocol):
    """A `PromptTemplate`, for a tool that evaluates it."""

    @property
    def ns(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def output_type(self) -> type[Out] | None: ...
    @property
    def registry(self) -> AgentSections: ...
    def bind(self, *params: object) -> BoundPrompt[Out]: ...


@dataclass(frozen=True, slots=True, init=False)
class Tool[P, R](Parametrized):
    """A function that the model can call.

    Write `Tool[Params, Result](name=…, description=…, handler=…)`, or omit the subscript if the
    handler is annotated or `params_type` is given. The description defaults to the first paragraph
    of the handler's docstring, with its lines joined by spaces, or to the name if there is no
    docstring. Names must be 1-64 characters from a-z, 0-9, `_` and `-`. Descriptions must be
    1-1,024 characters, and `wink check` recommends at most 200. Params are dataclasses.

    `effect` is explained in `Effect`: when `MainLoop` restarts an evaluation, it does not repeat
    calls of an `"at_most_once"` or `"transactional"` tool. `approval` is explained in `Approval`:
    it makes calls wait for a decision; by default, calls do not need approval. `"effects"` runs the
    handler before the decision, so it requires `effect="repeatable"` or `"pure"`, which promises
    that a call affects only the session and the resources.

    Raises `PromptValidationError` for invalid arguments, and for a handler that cannot be called as
    `handler(params, context=…)`.
    """

    type_fields = ("params_type", "result_type")

    name: str
    description: str
    handler: ToolHandler[P, R] | None
    params_type: type[P]
    result_type: type[R]
    examples: tuple[ToolExample[P, R], ...]
    accepts_overrides: bool
    effect: Effect
    approval: "Approval | None"
    schema: str | None
    """The params schema as JSON text if `from_schema` created the tool, otherwise `None`."""

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        handler: ToolHandler[P, R] | None = None,
        params_type: type[P] | None = None,
        result_type: type[R] | None = None,
        examples: Sequence[ToolExample[P, R]] = (),
        accepts_overrides: bool = True,
        effect: Effect = "undeclared",
        approval: "Approval | None" = None,
        schema: str | None = None,
    ) -> None:
        if not isinstance(name, str) or re.fullmatch(TOOL_NAME, name) is None:
            raise PromptValidationError(
                f"invalid tool name {name!r}: use 1 to 64 characters from a-z, 0-9, '_' and '-'"
            )
        if handler is not None:
            check_handler(f"tool {name!r}", handler)
        if description is None:
            description = description_of(handler) or name
        check_description(name, description)
        params_type = params_type or self.inherited_arguments.get("params_type")
        result_type = result_type or self.inherited_arguments.get("result_type")
        if schema is None or result_type is None:
            params_type, result_type = find_types(name, handler, params_type, result_type)
        _check_effect(name, effect, approval, handler)
        if params_type is None or (schema is None and not is_record_type(params_type)):
            raise PromptValidationError(
                f"tool {name!r}: params type must be {RECORD_TYPES}, got {params_type!r}; for no "
                "arguments, use one without fields"
            )
        for example in examples:
            if not isinstance(example, ToolExample) or not is_instance(example.input, params_type):
                raise PromptValidationError(
                    f"tool {name!r}: examples must be ToolExample objects with an input of "
                    f"{params_type.__name__}, got {example!r}"
                )
        assign = object.__setattr__
        assign(self, "name", name)
        assign(self, "description", description)
        assign(self, "handler", handler)
        assign(self, "params_type", params_type)
        assign(self, "result_type", object if result_type is None else result_type)
        assign(self, "examples", tuple(examples))
        assign(self, "accepts_overrides", accepts_overrides)
        assign(self, "effect", effect)
        assign(self, "approval", approval)
        assign(self, "schema", schema)

    @staticmethod
    def from_schema[T](
        *,
        name: str,
        description: str,
        parameters: Mapping[str, object] | None,
        handler: ToolHandler[JsonParams, T] | None,
        result_type: type[T] | None = None,
        examples: Sequence[ToolExample[JsonParams, T]] = (),
        accepts_overrides: bool = True,
        effect: Effect = "undeclared",
        approval: "Approval | None" = None,
        check_schema: bool = True,
    ) -> "Tool[JsonParams, T]":
        """Returns a tool whose params are described by a JSON Schema instead of a type.

        `parameters` is an object's schema, for example from an external server or a file; `None`
        accepts every object. The handler receives the arguments as a `dict` that matches the
        schema; if the arguments do not match, the model receives an error. With
        `check_schema=False`, the schema itself is checked only at the first call. Use this option
        for a schema that was already checked, because a check takes 3 ms. Raises
        `PromptValidationError` like `Tool` and for an invalid schema, and `ImportError` if a check
        needs jsonschema but it is not installed.
        """
        try:
            schema = {"type": "object"} if parameters is None else dict(parameters)
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            if _OLDER_DIALECT.search(text):
                from .external_schemas import upgrade_dialect

                schema = upgrade_dialect(schema)
                text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            if check_schema:
                from ..serde import validation

                validation.check_schema(schema)
                types = schema.get("type", "object")
                if "object" not in (types if isinstance(types, list) else [types]):
                    raise TypeError(f"the type must admit an object, got {types!r}")
                for example in examples:
                    validation.parse_object(text, serde.dump_json(example.input))
        except (SerdeError, TypeError, ValueError, RecursionError) as error:
            raise PromptValidationError(
                f"tool {name!r}: parameters= is not a JSON Schema, or an example's input does not "
                f"match it ({error}); correct the schema or the example"
            ) from error
        # `isinstance` checks need the class `dict`, although the handler is typed to receive a
        # mapping
        params_type: type[Mapping[str, serde.Json]] = dict
        return Tool(
            name=name,
            description=description,
            handler=handler,
            params_type=params_type,
            result_type=result_type,
            examples=examples,
            accepts_overrides=accepts_overrides,
            effect=effect,
            approval=approval,
            schema=text,
        )

    @staticmethod
    def from_prompt[Out](
        template: AgentTemplate[Out],
        *,
        name: str,
        description: str | None = None,
        params_type: type[Any] | None = None,  # Any: the params of all templates
        accepts_overrides: bool = True,
        effect: Effect | None = None,
        approval: "Approval | None" = None,
        budget: "Budget | None" = None,
        adapter: AnyEvaluator | str | None = None,
    ) -> "Tool[Any, Out]":  # Any: as above
        """Returns a tool that evaluates `template`, so that an agent can delegate to another one.

        The tool's params are those that the template requires, or `params_type` if it is given; if
        the template does not require any, they are a `PromptMessage` with the user's message. The
        result is the typed output, or the text. The run is nested in the call, as with
        `ToolContext.evaluate`, and its tools use the caller's resources for types that the template
        does not bind. `budget` limits each call. To use another model, pass `adapter`: an adapter,
        or the name of a model, from which each call creates an adapter. The tool's section also
        declares the template's state. By default, `effect` is derived from the template's tools:
        `"at_most_once"` if one of them must not run twice, `"undeclared"` if one of them does not
        declare its effect, and `"repeatable"` otherwise. Raises `PromptValidationError` for a
        template that requires several params types, and for a model without a known provider.
        """
        registry = template.registry
        required = registry.required_params | ({params_type} if params_type else set())
        if len(required) > 1 or not required <= registry.params_types:
            names = ", ".join(sorted([kind.__name__ for kind in required]))
            raise PromptValidationError(
                f"tool {name!r}: the model can supply only one params type, but the template "
                f"{template.key!r} requires {names}; give all but one of them defaults"
            )
        try:
            _check_agent(budget, adapter)
        except (TypeError, ValueError) as error:
            raise PromptValidationError(f"tool {name!r}: {error}") from error
        if effect is None:
            effects = registry.effects
            inherited: Effect = "repeatable" if effects <= MAY_RUN_ON_FORKS else "undeclared"
            effect = "at_most_once" if effects & NON_REPEATABLE else inherited
        return Tool(
            name=name,
            description=description,
            handler=PromptHandler(template, budget, adapter),
            params_type=next(iter(required), PromptMessage),
            result_type=template.output_type,
            accepts_overrides=accepts_overrides,
            effect=effect,
            approval=approval,
        )

    def params_schema(self) -> "serde.JsonSchema":
        """Returns the JSON Schema of the params; the dict is shared, so copy it before changing it.

        Raises `SerdeError` for a type that cannot be converted to and from JSON.
        """
        if self.schema is not None:
            return _load_schema(self.schema)
        return serde.json_schema(self.params_type)

    def parse_params(self, text: str) -> P:
        """Parses the params from JSON `text`; empty text and `null` are treated as `{}`.

        Raises `SerdeError` with every issue if the text is invalid, and if a key appears twice.
        """
        text = "{}" if text.strip() in ("", "null") else text
        serde.check_unique_keys("arguments", text)
        if self.schema is None:
            return serde.parse_json(self.params_type, text)
        from ..serde.validation import parse_object

        # a tool with a schema receives its params as a dict
        return cast(P, parse_object(self.schema, text))

    def __hash__(self) -> int:
        return hash((self.name, self.handler))  # examples may contain unhashable values


@dataclass(frozen=True)
class PromptMessage:
    """The params of a tool whose prompt requires none: a message to the agent."""

    message: str


@dataclass(frozen=True, slots=True)
class PromptHandler[Out]:
    """The handler of a tool created by `Tool.from_prompt`."""

    template: AgentTemplate[Out]
    budget: "Budget | None" = None
    adapter: AnyEvaluator | str | None = None

    async def __call__(self, params: object, /, *, context: ToolContext) -> ToolResult[Out]:
        message = params.message if isinstance(params, PromptMessage) else None
        prompt = self.template.bind(*([] if message else [params]))
        options: NestedOptions = {"message": message}
        if self.budget is not None:
            options["budget"] = self.budget
        if self.adapter is not None:
            options["adapter"] = self.adapter
        response = await context.evaluate_async(prompt, **options)
        if self.template.output_type is None:
            return ToolResult(response.text)
        return ToolResult(response.text, response.output, exclude_value_from_context=True)

    def __hash__(self) -> int:
        return hash((self.template.ns, self.template.key))  # sections may be unhashable


def _check_agent(budget: object, adapter: object) -> None:
    """Raises `TypeError` or `ValueError` for a budget or an adapter that no run can have."""
    if budget is not None:
        from ..limits import check_limits

        check_limits(None, budget)
    if isinstance(adapter, str):
        # this layer does not know the providers
        import_module("weakincentives.adapters.model_names").read_name(adapter)
    elif adapter is not None and (isinstance(adapter, type) or not hasattr(adapter, "evaluate")):
        raise TypeError(f"adapter must be an adapter or the name of a model, got {adapter!r}")


@lru_cache(maxsize=4096)
def _load_schema(text: str) -> "serde.JsonSchema":
    schema: serde.JsonSchema = json.loads(text)
    return schema


# Any: a registry contains the tools of all sections, each with its own types.
type AnyTool = Tool[Any, Any]
type AnyToolHandler = ToolHandler[Any, object]


def _check_effect(
    name: str, effect: Effect, approval: "Approval | None", handler: AnyHandler | None
) -> None:
    if effect not in _EFFECTS:
        raise PromptValidationError(
            f"tool {name!r}: effect must be one of {', '.join(map(repr, _EFFECTS))}, got {effect!r}"
        )
    if approval is not None:
        from .approval_rules import check_approval

        check_approval(f"tool {name!r}", approval)
    if approval == "effects" and (problem := preview_problem(effect, handler)):
        remedy = "use approval='arguments'"
        if effect == "undeclared":
            remedy = (
                "declare effect='repeatable' if all effects of a call go through the session and "
                f"the resources, or {remedy}"
            )
        raise PromptValidationError(
            f"tool {name!r}: approval='effects' runs a call before the decision, but {problem}; "
            f"{remedy}"
        )


def preview_problem(effect: Effect, handler: AnyHandler | None) -> str:
    """Explains why a call must not run before it is approved; returns `""` if it may."""
    if effect == "undeclared":
        return "the tool declares no effect"
    if effect in NON_REPEATABLE:
        return f"the tool is {effect!r}"
    if isinstance(handler, PromptHandler) and handler.template.registry.has_non_repeatable_tools:
        return f"the prompt {handler.template.key!r} has tools that must not run twice"
    return ""


def check_description(name: str, description: object) -> None:
    """Raises `PromptValidationError` if it is not 1-1,024 characters of valid Unicode."""
    if not isinstance(description, str):
        raise PromptValidationError(
            f"tool {name!r}: description must be a string, got {description!r}"
        )
    if not 1 <= len(description) <= MAX_DESCRIPTION:
        raise PromptValidationError(
            f"tool {name!r}: description must have 1 to {MAX_DESCRIPTION} characters, got "
            f"{len(description)}; move the rest into the section's text"
        )
    if description.encode(errors="ignore").decode() != description:
        raise PromptValidationError(
            f"tool {name!r}: cannot encode the description {description!r} as UTF-8; remove "
            "surrogates"
        )
