"""A template with its parameters bound: what is rendered and evaluated."""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from ..generics import Parametrized
from ..protocols import StateView
from ..resources import Bindable, ResourceContext, ResourceRegistry
from ..visibility import SectionDecisions, SectionPath, SectionVisibility
from .errors import PromptValidationError
from .renderer import PromptRenderer, RenderedPrompt
from .sections import AnySection
from .template import OutputT, PromptTemplate, full_key
from .walk import Disclosure

if TYPE_CHECKING:
    from ..limits import Deadline
    from .output import StructuredOutputConfig
    from .overrides.model import PromptDescriptor, PromptOverride, PromptOverridesStore

__all__ = ["Prompt", "RenderedPrompt"]


class Prompt(Parametrized, Generic[OutputT]):
    """A prompt that can be bound, rendered and evaluated; it belongs to one session at a time.

    `Prompt(template)`, `template.bind(…)` and `Prompt[Out](ns=…, key=…, sections=[…])`, which
    builds the template itself, all give one. What `overrides_store` holds under `overrides_tag`
    replaces the template's texts at each render. `with prompt.resources:` opens its resources, and
    `prompt.resources.get(Type)` gives one; evaluation opens them by itself where they are not open.
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
        resources: ResourceRegistry | None = None,
        overrides_store: "PromptOverridesStore | None" = None,
        overrides_tag: str = "latest",
    ) -> None: ...
    # Any: the overloads say what may be given; the template checks it.
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
                f"{template!r} is no PromptTemplate; make one or give ns=, key= and sections="
            )
        elif definition and definition != {"output_type": template.output_type}:
            raise PromptValidationError(
                f"{', '.join(definition)} beside a template for {template.output_type!r}: Prompt takes a template or "
                f"the arguments of one, not both"
            )
        self.template = template
        self._store = overrides_store
        self._tag = overrides_tag
        self._renderer: PromptRenderer[OutputT] = template.renderer
        self._params: dict[type[Any], object] = {}
        self.resources = ResourceContext(template.resources | template.registry.resources)

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
        """What an evaluation's `output` is; `None` for text."""
        return self.template.output_type

    # Any: params of every type, each looked up by its own.
    @property
    def params(self) -> Mapping[type[Any], object]:
        """What is bound, by type."""
        return MappingProxyType(self._params)

    @property
    def descriptor(self) -> "PromptDescriptor":
        """The template's descriptor."""
        return self.template.descriptor

    @property
    def overrides(self) -> "PromptOverride | None":
        """What the store holds for it at present; `None` without a store."""
        return None if self._store is None else self._store.resolve(self.descriptor, self._tag)

    def bind(self, *params: object, resources: Bindable | None = None) -> Self:
        """Binds dataclass instances, one for each type, in place; one bound before of the same type
        is replaced.

        `resources`, a registry or the values themselves by type, replace those of template and
        sections. Raises `PromptValidationError` for two of one type, a type that no section uses,
        and what is no instance of a dataclass; `RuntimeError` for resources while they are open.
        """
        by_type = self._by_type(params)
        if resources is not None:
            self.resources.rebind(self.resources.registry | resources)
        self._params.update(by_type)
        return self

    def render(
        self,
        *params: object,
        session: StateView | None = None,
        visibility_overrides: Mapping[SectionPath, SectionVisibility] | None = None,
        decisions: SectionDecisions | None = None,
        deadline: "Deadline | None" = None,
    ) -> RenderedPrompt[OutputT]:
        """The text and tools for the bound params; `params` replace bound ones for this call only.

        `session` feeds selectors and holds visibility overrides, which `visibility_overrides` beat.
        `decisions` of a conversation that goes on stand for these overrides and for the answers
        that selectors gave in it. Raises `PromptRenderError` with the path of the section.
        """
        return self._renderer.render(
            param_lookup={**self._params, **self._by_type(params)}
            if params
            else dict(self._params),
            session=session,
            visibility_overrides=visibility_overrides,
            decisions=decisions,
            stored=self.overrides,
            deadline=deadline,
            prompt=self,
        )

    def __repr__(self) -> str:
        bound = [kind.__name__ for kind in self._params]
        return f"<Prompt {full_key(self.ns, self.key)}{f' params={reprlib.repr(bound)}' if bound else ''}>"

    # Any: params of every type, each looked up by its own.
    def _by_type(self, params: tuple[object, ...]) -> dict[type[Any], object]:
        known = self.template.registry.params_types
        found: dict[type[Any], object] = {}
        for value in params:
            kind = type(value)
            if isinstance(value, type) or not is_dataclass(value):
                raise PromptValidationError(
                    "Prompt expects dataclass instances.", detail=f"Got {value!r}."
                )
            if kind in found:
                raise PromptValidationError(
                    "Duplicate params type supplied to prompt.",
                    detail=f"{kind.__name__} was given twice; give one.",
                )
            if kind not in known:
                used = ", ".join(sorted(one.__name__ for one in known)) or "none"
                raise PromptValidationError(
                    "Unexpected params type supplied to prompt.",
                    detail=f"No section uses {kind.__name__}; the sections use {used}.",
                )
            found[kind] = value
        return found
