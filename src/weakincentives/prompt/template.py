"""The definition of a prompt: an immutable, checked tree of sections with a name and an output
type.
"""

import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, cast

from ..errors import SerdeError
from ..generics import Parametrized
from ..protocols import StateView
from ..resources import Bindable, ResourceRegistry
from ..visibility import SectionPath, SectionVisibility
from .errors import PromptValidationError
from .registry import RegistrySnapshot
from .renderer import PromptRenderer, RenderedPrompt
from .sections import AnySection
from .walk import Disclosure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import TypeVar

    from ..limits import Deadline
    from .output import StructuredOutputConfig
    from .overrides.model import PromptDescriptor
    from .prompt import Prompt

    OutputT = TypeVar("OutputT", default=None)
else:  # the default is for type checkers; 3.12's own TypeVar knows none
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

__all__ = ["PromptTemplate"]


@dataclass(frozen=True, slots=True, init=False)
class PromptTemplate(Parametrized, Generic[OutputT]):
    """The definition of a prompt; share it freely between threads, sessions and event loops.

    `PromptTemplate[Answer](…)` asks for one JSON object, `PromptTemplate[list[Answer]](…)` for an
    array of objects, without a subscript for text. `name` is by default made from `key`.
    `disclosure` says how summarized sections are opened, `closable` lets the model close them again
    with `close_section`. `resources` binds what tools use; what sections bind replaces it, and what
    is bound to a prompt replaces both. Raises `PromptValidationError`, with the path of the
    section, for everything that cannot work.
    """

    type_fields = ("output_type",)

    ns: str
    key: str
    name: str
    sections: tuple[AnySection, ...]
    structured_output: "StructuredOutputConfig[OutputT] | None"
    disclosure: Disclosure
    closable: bool
    resources: ResourceRegistry
    registry: RegistrySnapshot = field(init=False, repr=False, compare=False)
    _descriptor: "PromptDescriptor | None" = field(init=False, repr=False, compare=False)

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
        output_type: type[OutputT] | None = None,
    ) -> None:
        for label, value in (("ns", ns), ("key", key)):
            if not isinstance(value, str) or not value.strip():
                raise PromptValidationError(
                    f"{label} is {value!r}; give every prompt a non-empty {label}"
                )
        if not isinstance(disclosure, Disclosure):
            raise PromptValidationError(
                f"disclosure is {disclosure!r}; use Disclosure.READ, .OPEN or .SPLIT"
            )
        if not isinstance(resources, ResourceRegistry | None):
            raise PromptValidationError(f"resources is {resources!r}; use ResourceRegistry.of(…)")
        roots = tuple(sections)
        assign = object.__setattr__
        assign(self, "ns", ns)
        assign(self, "key", key)
        assign(self, "name", name or re.sub(r"\W+", "_", key).strip("_") or key)
        assign(self, "sections", roots)
        declared = output_type or self.inherited_arguments.get("output_type")
        assign(self, "structured_output", _with_schema(_output(declared, structured_output)))
        assign(self, "disclosure", disclosure)
        assign(self, "closable", closable)
        assign(self, "resources", resources or ResourceRegistry())
        assign(self, "registry", RegistrySnapshot(roots))
        assign(self, "_descriptor", None)

    def __repr__(self) -> str:
        kind = self.output_type
        output = kind.__name__ if isinstance(kind, type) else str(kind)
        keys = reprlib.repr([section.key for section in self.sections])
        shown = f" output={output[:60]}" if kind else ""
        return f"<PromptTemplate {full_key(self.ns, self.key)}{shown} sections={keys}>"

    @property
    def output_type(self) -> type[OutputT] | None:
        """What an evaluation's `output` is, `list[T]` included; `None` for text."""
        return None if self.structured_output is None else self.structured_output.output_type

    @property
    def descriptor(self) -> "PromptDescriptor":
        """The hashes of what an author can see, and every text that an override can replace; made
        on first use.
        """
        if self._descriptor is None:
            from .overrides.descriptors import describe

            object.__setattr__(self, "_descriptor", describe(self.ns, self.key, self.registry))
        # set two lines above, which no checker sees
        return cast("PromptDescriptor", self._descriptor)

    def bind(self, *params: object, resources: Bindable | None = None) -> "Prompt[OutputT]":
        """A new prompt of this template with `params` and `resources` bound; see `Prompt.bind`."""
        from .prompt import Prompt

        return Prompt(self).bind(*params, resources=resources)

    def render(
        self,
        *params: object,
        session: StateView | None = None,
        visibility_overrides: "Mapping[SectionPath, SectionVisibility] | None" = None,
        deadline: "Deadline | None" = None,
    ) -> RenderedPrompt[OutputT]:
        """Renders with `params` alone; see `Prompt.render`."""
        return self.bind(*params).render(
            session=session, visibility_overrides=visibility_overrides, deadline=deadline
        )

    @property
    def renderer(self) -> PromptRenderer[OutputT]:
        """The renderer of this template's tree."""
        return PromptRenderer(
            self.registry, self.structured_output, self.disclosure, closable=self.closable
        )


def full_key(ns: str, key: str) -> str:
    """`ns/key` in one line of at most 100 characters."""
    return " ".join(f"{ns}/{key}".split())[:100]


# Any: an output type that was not declared is any type at all.
def _output(
    output_type: type[Any] | None, config: "StructuredOutputConfig[Any] | None"
) -> "StructuredOutputConfig[Any] | None":
    if output_type is None or output_type is type(None):
        return config
    if config is None:
        from .output import StructuredOutputConfig

        return StructuredOutputConfig(output_type)
    if config.output_type != output_type:
        raise PromptValidationError(
            f"the prompt is declared for {output_type!r} and its structured_output for {config.output_type!r}; "
            f"declare one of them"
        )
    return config


def _with_schema(
    config: "StructuredOutputConfig[Any] | None",
) -> "StructuredOutputConfig[Any] | None":
    """`config`, whose type must have a JSON schema, as the params of tools must."""
    if config is not None:
        from .. import serde

        try:
            serde.json_schema(config.item_type)
        except SerdeError as error:
            raise PromptValidationError(
                f"output type {config.output_type!r} has no JSON schema ({error}); "
                f"use types that JSON can hold and that are defined by now"
            ) from error
    return config
