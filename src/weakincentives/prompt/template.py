"""`PromptTemplate` defines a prompt, and `Prompt` is a template with bound params.

A template is a value that threads and sessions can share. A run uses the bindings that its prompt
had when the run started: `bind` replaces the bindings, but does not affect copies of the prompt.
"""

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from ..generics import Parametrized
from ..locks import RunStack
from ..protocols import SessionProtocol, StateView
from ..record_types import AnyType, is_instance, is_record_type, is_typed_dict
from ..resources import Bindable, ResourceContext, ResourceRegistry
from ..signatures import did_you_mean, with_remedies
from ..visibility import SectionDecisions, SectionPath, SectionVisibility
from .context import OutputCheck
from .errors import PromptValidationError
from .handlers import check_handler
from .registry import RESERVED_TOOL_NAMES, RegistrySnapshot
from .sections import AnySection, ParamsByType, ParamsType
from .walk import Disclosure

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ..limits import Deadline
    from ..model_settings import ModelSettings
    from .output import StructuredOutputConfig
    from .overrides.model import PromptDescriptor, PromptOverride, PromptOverridesStore
    from .renderer import PromptRenderer, RenderedPrompt

    OutputT = TypeVar("OutputT", default=None)
else:  # the default is for type checkers; the TypeVar of Python 3.12 does not support it
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

__all__ = ["AnyPrompt", "AnyTemplate", "Prompt", "PromptTemplate"]


@dataclass(frozen=True, init=False)
class PromptTemplate(Parametrized, Generic[OutputT]):
    """The definition of a prompt; share it freely between threads, sessions and event loops.

    `PromptTemplate[Answer](…)` asks for one JSON object, `PromptTemplate[list[Answer]](…)` asks for
    an array of objects, and `PromptTemplate(…)` asks for text. `name` is derived from `key` by
    default. `disclosure` determines which tools open summarized sections; `closable` lets the model
    close them again with `close_section`. `accept` checks each answer, with a tool's context and in
    a transaction; if it rejects an answer, the model is told why and answers again. `settings`
    determine how the model answers. `resources`
    binds resources for tools; section bindings override these, and prompt bindings override both.
    Raises `PromptValidationError`, with the section's path, for an invalid definition.
    """

    type_fields = ("output_type",)

    ns: str
    key: str
    name: str
    sections: tuple[AnySection, ...]
    structured_output: "StructuredOutputConfig[OutputT] | None"
    disclosure: Disclosure
    closable: bool
    accept: OutputCheck[OutputT] | None
    resources: ResourceRegistry
    settings: "ModelSettings | None"
    registry: RegistrySnapshot = field(init=False, repr=False, compare=False)

    @with_remedies
    def __init__(
        self,
        *,
        ns: str,
        key: str,
        name: str | None = None,
        sections: Iterable[AnySection] = (),
        structured_output: "StructuredOutputConfig[OutputT] | None" = None,
        disclosure: Disclosure = Disclosure.READ,
        closable: bool = False,
        accept: OutputCheck[OutputT] | None = None,
        resources: ResourceRegistry | None = None,
        settings: "ModelSettings | None" = None,
        output_type: type[OutputT] | None = None,
    ) -> None:
        for label, value in (("ns", ns), ("key", key)):
            if not isinstance(value, str) or not value.strip():
                raise PromptValidationError(f"{label} must be a non-empty string, got {value!r}")
        if not isinstance(disclosure, Disclosure):
            raise PromptValidationError(
                f"disclosure must be Disclosure.READ, .OPEN or .SPLIT, got {disclosure!r}"
            )
        if resources is not None and not isinstance(resources, ResourceRegistry):
            raise PromptValidationError(
                "resources must be a ResourceRegistry, such as ResourceRegistry.of(…), got "
                f"{resources!r}"
            )
        if accept is not None:
            check_handler("accept", accept, "output: Output")
        output_type = output_type or self.inherited_arguments.get("output_type")
        try:
            roots = tuple(sections)
        except TypeError as error:
            raise PromptValidationError(
                f"sections must be a list, such as sections=[…], got {sections!r}"
            ) from error
        registry = RegistrySnapshot(roots)
        if settings is not None:
            _check_settings(settings, registry)
        values = {
            "ns": ns,
            "key": key,
            "name": name or re.sub(r"\W+", "_", key).strip("_") or key,
            "sections": roots,
            "structured_output": _output(output_type, structured_output),
            "disclosure": disclosure,
            "closable": closable,
            "accept": accept,
            "resources": resources or ResourceRegistry(),
            "settings": settings,
            "registry": registry,
        }
        vars(self).update(values)  # the class is frozen

    def __repr__(self) -> str:
        output = self.output_type
        name = output.__name__ if isinstance(output, type) else str(output)
        shown = f" output={name[:60]}" if output else ""
        keys = reprlib.repr([section.key for section in self.sections])
        return f"<PromptTemplate {_label(self)}{shown} sections={keys}>"

    @property
    def output_type(self) -> type[OutputT] | None:
        """The type of an evaluation's `output`, such as `list[T]`; `None` for text."""
        # type checkers do not accept a union as `type[…]`
        form: AnyType = self.structured_output and self.structured_output.output_type
        output_type: type[OutputT] | None = form
        return output_type

    @property
    def descriptor(self) -> "PromptDescriptor":
        """Every text that can be overridden, with hashes for detecting changes."""
        return self._descriptor

    @cached_property
    def _descriptor(self) -> "PromptDescriptor":
        # Imported here, because hashing loads OpenSSL and few prompts have overrides.
        from .overrides.descriptors import describe

        return describe(self.ns, self.key, self.registry)

    @cached_property
    def renderer(self) -> "PromptRenderer[OutputT]":
        """The renderer for this template's tree."""
        from .renderer import PromptRenderer

        return PromptRenderer(
            self.registry, self.structured_output, self.disclosure, closable=self.closable
        )

    def bind(self, *params: object, resources: Bindable | None = None) -> "Prompt[OutputT]":
        """Creates a prompt with `params` and `resources` bound; see `Prompt.bind`."""
        return Prompt(self).bind(*params, resources=resources)

    def render(
        self,
        *params: object,
        session: StateView | None = None,
        visibility_overrides: Mapping[SectionPath, SectionVisibility] | None = None,
        deadline: "Deadline | None" = None,
    ) -> "RenderedPrompt[OutputT]":
        """Renders the template with only `params`; see `Prompt.render`."""
        return self.bind(*params).render(
            session=session, visibility_overrides=visibility_overrides, deadline=deadline
        )


class Prompt(Parametrized, Generic[OutputT]):
    """A prompt that can be bound, rendered and evaluated; a run uses the current bindings.

    Create one with `template.bind(…)`, `Prompt(template)` or `Prompt[Out](ns=…, key=…,
    sections=[…])`, which also builds the template. At each render, the overrides under
    `overrides_tag` in `overrides_store` replace the template's texts. `with prompt.resources:`
    opens the prompt's resources, and `prompt.resources.get(Type)` returns one; an evaluation opens
    them if they are not open.
    """

    type_fields = ("output_type",)

    @overload
    def __init__(
        self,
        template: PromptTemplate[OutputT],
        /,
        *,
        overrides_store: "PromptOverridesStore | None" = None,
        overrides_tag: str = "latest",
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        ns: str,
        key: str,
        name: str | None = None,
        sections: Iterable[AnySection] = (),
        structured_output: "StructuredOutputConfig[OutputT] | None" = None,
        disclosure: Disclosure = Disclosure.READ,
        closable: bool = False,
        accept: OutputCheck[OutputT] | None = None,
        resources: ResourceRegistry | None = None,
        settings: "ModelSettings | None" = None,
        overrides_store: "PromptOverridesStore | None" = None,
        overrides_tag: str = "latest",
    ) -> None: ...
    # Any: the overloads name the arguments; the template checks them.
    def __init__(
        self,
        template: PromptTemplate[OutputT] | None = None,
        *,
        overrides_store: "PromptOverridesStore | None" = None,
        overrides_tag: str = "latest",
        **definition: Any,
    ) -> None:
        definition = {**self.inherited_arguments, **definition}
        if template is None:
            template = PromptTemplate(**definition)
        elif not isinstance(template, PromptTemplate):
            raise PromptValidationError(
                f"Prompt takes a PromptTemplate, or ns=, key= and sections=, got {template!r}"
            )
        elif definition and definition != {"output_type": template.output_type}:
            raise PromptValidationError(
                "Prompt takes a template or a template's arguments, not both, got a template "
                f"for {template.output_type!r} and {', '.join(definition)}"
            )
        self.template = template
        self._has_store = overrides_store is not None
        self._read_overrides: Callable[[], PromptOverride | None] = partial(
            _overrides, template, overrides_store, overrides_tag
        )
        self._renderer: PromptRenderer[OutputT] = template.renderer
        self._params: ParamsByType = {}
        own, of_sections = template.resources, template.registry.resources
        self.resources = ResourceContext(own | of_sections if own.bindings else of_sections)

    def __repr__(self) -> str:
        types = [kind.__name__ for kind in self._params]
        shown = f" params={reprlib.repr(types)}" if types else ""
        return f"<Prompt {_label(self)}{shown}>"

    def _repr_markdown_(self) -> str:
        """Renders the prompt as Markdown for notebooks, or explains why it cannot be rendered."""
        from ..displays import code_block, code_span, markdown

        try:
            return markdown(self.render())
        except Exception as error:  # user-defined conditions can raise anything
            reason = code_block(f"{type(error).__name__}: {error}")
            return f"**Prompt** {code_span(_label(self))} cannot be rendered.\n\n{reason}"

    @property
    def ns(self) -> str:
        """The template's namespace."""
        return self.template.ns

    @property
    def key(self) -> str:
        """The template's key."""
        return self.template.key

    @property
    def name(self) -> str:
        """The template's display name."""
        return self.template.name

    @property
    def output_type(self) -> type[OutputT] | None:
        """The type of an evaluation's `output`; `None` for text."""
        return self.template.output_type

    @property
    def structured_output(self) -> "StructuredOutputConfig[OutputT] | None":
        """The declared output; `None` for text."""
        return self.template.structured_output

    @property
    def settings(self) -> "ModelSettings | None":
        """The template's model settings."""
        return self.template.settings

    @property
    def params(self) -> ParamsByType:
        """The bound params, by type."""
        return MappingProxyType(self._params)

    @property
    def descriptor(self) -> "PromptDescriptor":
        """The template's descriptor."""
        return self.template.descriptor

    @property
    def overrides(self) -> "PromptOverride | None":
        """The prompt's current overrides in the store; `None` if there is no store."""
        return self._read_overrides()

    def bind(self, *params: object, resources: Bindable | None = None) -> Self:
        """Binds dataclass instances in place, one for each type, and returns this prompt.

        A later binding of a type replaces the earlier one, except in runs and chats that have
        already started. `resources`, a registry or a mapping from types to values, override the
        bindings of the template and its sections. Raises `PromptValidationError` for two instances
        of the same type, a type that no section uses, and anything other than a dataclass instance,
        and `RuntimeError` for resources while they are open.
        """
        by_type = self._by_type(params)
        if resources is not None:
            self.resources = self.resources.rebound(self.resources.registry | resources)
        # Both are replaced instead of modified, because copies of this prompt share them.
        self._params = {**self._params, **by_type}
        return self

    def for_run(self) -> Self:
        """Returns a copy for one run, with the current bindings; reads the overrides only once."""
        once = {"_read_overrides": cache(self._read_overrides)} if self._has_store else {}
        return self._copy(**once)

    def _copy(self, **changes: object) -> Self:
        copied = object.__new__(type(self))  # six times as fast as `copy.copy`
        copied.__dict__ = self.__dict__ | changes
        return copied

    def render(
        self,
        *params: object,
        session: StateView | None = None,
        visibility_overrides: Mapping[SectionPath, SectionVisibility] | None = None,
        decisions: SectionDecisions | None = None,
        deadline: "Deadline | None" = None,
    ) -> "RenderedPrompt[OutputT]":
        """Renders the text and the tools; `params` replace the bound params for this call only.

        `session` is passed to conditions, and its visibility overrides apply;
        `visibility_overrides` take precedence over them. To continue a conversation, pass its
        `decisions`: they replace both, as well as conditions that were already evaluated. The
        result contains a copy of this prompt with the params and overrides that were rendered.
        Raises `PromptRenderError`, with the section's path.
        """
        param_lookup = {**self._params, **self._by_type(params)}
        stored = self.overrides
        return self._renderer.render(
            param_lookup=param_lookup,
            session=session,
            visibility_overrides=visibility_overrides,
            decisions=decisions,
            stored=stored,
            deadline=deadline,
            prompt=self._copy(_params=param_lookup, _read_overrides=lambda: stored),
        )

    def declare_state(self, session: SessionProtocol) -> None:
        """Adds the state that the sections declare to `session`; evaluations do this automatically.

        Call this method before parsing a snapshot, so that the session knows the snapshot's types.
        """
        if state := self.template.registry.state:
            session.declare(*state.values())

    def runs_with(self, session: SessionProtocol) -> list[RunStack]:
        """Returns the stacks that a run reserves: for the session and the prompt's resources."""
        resources = self.resources
        return [session.runs, resources.runs] if resources.registry.bindings else [session.runs]

    def _by_type(self, params: tuple[object, ...]) -> ParamsByType:
        types = self.template.registry.params_types
        by_type: dict[ParamsType, object] = {}
        for value in params:
            kind = type(value)
            if kind is dict and any(map(is_typed_dict, types)):
                kind = _typed_dict(value, types)
            if not is_record_type(kind):
                raise PromptValidationError(
                    "Prompt expects dataclass instances.", detail=_instead_of(value, types)
                )
            if kind in by_type:
                raise PromptValidationError(
                    "Duplicate params type supplied to prompt.",
                    detail=f"{kind.__name__} was passed twice; pass one.",
                )
            if kind not in types:
                names = ", ".join(sorted(known.__name__ for known in types)) or "none"
                raise PromptValidationError(
                    "Unexpected params type supplied to prompt.",
                    detail=f"No section uses {kind.__name__}; the sections use {names}.",
                )
            by_type[kind] = value
        return by_type


# Any: for code that handles prompts of every output type.
type AnyPrompt = Prompt[Any]
type AnyTemplate = PromptTemplate[Any]


def _overrides(
    template: AnyTemplate, store: "PromptOverridesStore | None", tag: str
) -> "PromptOverride | None":
    return None if store is None else store.resolve(template.descriptor, tag)


def _instead_of(value: object, types: Iterable[ParamsType]) -> str:
    """Returns the remedy for a value that cannot be params."""
    names = ", ".join(sorted(known.__name__ for known in types))
    remedy = f"Pass instances of what the sections use: {names or 'none'}."
    if isinstance(value, type) and value in types:
        remedy = f"Create one: {value.__name__}(…)."
    elif isinstance(value, str) and not names:
        remedy = "The sections take no params; pass a message to the run instead."
    elif type(value).__module__ != "builtins":
        remedy += f" To give it to tools, write bind(resources={{{type(value).__name__}: …}})."
    return f"Got {value!r:.200}. {remedy}"


def _typed_dict(value: object, types: Iterable[ParamsType]) -> ParamsType:
    """Returns the only TypedDict in `types` that matches a dict's keys.

    Raises `PromptValidationError` if there is not exactly one.
    """
    kinds = [kind for kind in types if is_typed_dict(kind)]
    fitting = [kind for kind in kinds if is_instance(value, kind)]
    if len(fitting) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in fitting or kinds)) or "none"
        problem = "fits several of" if fitting else "fits none of"
        raise PromptValidationError(
            "Prompt cannot tell the type of a dict by its keys.",
            detail=f"It {problem} the TypedDicts that the sections use: {names}.",
        )
    return fitting[0]


def _label(prompt: AnyTemplate | AnyPrompt) -> str:
    """Returns `ns/key` as one line of at most 100 characters."""
    from ..displays import one_line

    return one_line(f"{prompt.ns}/{prompt.key}")


def _output(
    output_type: AnyType, config: "StructuredOutputConfig[object] | None"
) -> "StructuredOutputConfig[object] | None":
    """Returns the declared output, whose type must have a JSON schema, or `None` for text."""
    if output_type is None or output_type is type(None):
        output_type = None if config is None else config.output_type
    if output_type is None:
        return None
    from .output import StructuredOutputConfig

    config = config or StructuredOutputConfig(output_type)
    if config.output_type != output_type:
        raise PromptValidationError(
            "output types of the prompt and of its structured_output must agree, got "
            f"{output_type!r} and {config.output_type!r}; declare only one of them"
        )
    return config


def _check_settings(settings: object, registry: RegistrySnapshot) -> None:
    from ..model_settings import TOOL_CHOICES, ModelSettings

    if not isinstance(settings, ModelSettings):
        raise PromptValidationError(f"settings must be ModelSettings, got {settings!r}")
    known = {*TOOL_CHOICES, *RESERVED_TOOL_NAMES, *registry.tool_paths}
    if (choice := settings.tool_choice) is not None and choice not in known:
        names = [*TOOL_CHOICES, *sorted(registry.tool_paths)]
        raise PromptValidationError(
            f"tool_choice {choice!r} is not a tool of the template; {did_you_mean(choice, names)}"
        )
