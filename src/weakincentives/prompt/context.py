"""`ToolContext` gives a tool's handler access to the prompt, adapter, session and resources."""

from collections.abc import Coroutine, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, Unpack

from ..content import MediaSupport, Part
from ..protocols import EventBus, KindOf, Resources, Response, SessionProtocol
from ..resources import Bindable, Binding, ResourceContext, ResourceRegistry
from ..visibility import SectionPath, SectionVisibility

if TYPE_CHECKING:
    from ..limits import Budget, Deadline
    from ..model_settings import ModelSettings
    from .output import DeclaresOutput, StructuredOutputConfig
    from .overrides.model import PromptDescriptor

__all__ = [
    "AnyEvaluator",
    "BoundPrompt",
    "Evaluator",
    "NestedOptions",
    "OutputCheck",
    "ShownPrompt",
    "ToolContext",
    "revoke",
]


class BoundPrompt[Out](Protocol):
    """A `Prompt`, for modules that cannot import the class."""

    resources: ResourceContext

    @property
    def structured_output(self) -> "StructuredOutputConfig[Out] | None": ...
    @property
    def ns(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def params(self) -> Mapping[type[object], object]: ...
    @property
    def descriptor(self) -> "PromptDescriptor": ...
    @property
    def settings(self) -> "ModelSettings | None": ...
    def bind(self, *params: object, resources: Bindable | None = None) -> Self: ...


class ShownPrompt(Protocol):
    """A `RenderedPrompt`, for modules that cannot import the class."""

    @property
    def text(self) -> str: ...
    @property
    def visibility(self) -> Mapping[SectionPath, SectionVisibility]: ...


class Evaluator(Protocol):
    """A provider adapter with which handlers can evaluate another prompt."""

    @property
    def media(self) -> MediaSupport:
        """The images and documents that the adapter can send to its model."""
        ...

    def evaluate[Out](
        self,
        prompt: "DeclaresOutput[Out]",
        /,
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> Response[Out]:
        """Evaluates `prompt` as part of the tool call; `ToolContext.evaluate` passes the session.

        A context's adapter accepts all arguments of `MainLoop.execute`.
        """
        ...

    async def evaluate_async[Out](
        self,
        prompt: "DeclaresOutput[Out]",
        /,
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> Response[Out]:
        """Like `evaluate`, without blocking the event loop; for `async def` handlers."""
        ...


class AnyEvaluator(Protocol):
    """A provider adapter that evaluates prompts for a handler."""

    @property
    def media(self) -> MediaSupport: ...

    # Any: prompts with every output type, whose classes only adapters can import
    def evaluate(self, prompt: Any, /, *, session: SessionProtocol) -> Response[Any]: ...


class OutputCheck[Out](Protocol):
    """Accepts an answer by returning, or rejects it by raising `OutputRejected`; may be `async`."""

    def __call__(self, output: Out, /, *, context: "ToolContext") -> object: ...


class NestedOptions(TypedDict, total=False):
    """The arguments of `ToolContext.evaluate`, except the prompt.

    `session` and `deadline` default to those of the call. To use another model, pass `adapter`, an
    adapter or the model's name.
    """

    message: str | Sequence[Part] | None
    session: SessionProtocol
    deadline: "Deadline | None"
    budget: "Budget | None"
    adapter: AnyEvaluator | str
    settings: "ModelSettings | None"
    config: Any  # a `RunConfig`, which this layer does not know


@dataclass(frozen=True, slots=True, eq=False)
class ToolContext:
    """The context of one tool call, which its handler receives in addition to the params.

    After the call, reading `session`, `event_bus` or `resources` raises `RuntimeError`, because a
    thread or task that the handler left running could otherwise change state that was rolled back.
    `idempotency_key` identifies the call; a durable run that repeats the call after a crash passes
    the same key again.
    """

    # Any: a tool's handler serves prompts of every output type.
    prompt: BoundPrompt[Any]
    rendered_prompt: ShownPrompt | None
    adapter: Evaluator
    session: SessionProtocol = field(repr=False)
    event_bus: EventBus = field(repr=False)
    deadline: "Deadline | None" = None
    call_id: str = ""
    resources: Resources = field(default_factory=ResourceContext, repr=False)
    idempotency_key: str = ""

    def evaluate[Out](
        self,
        prompt: "DeclaresOutput[Out]",
        user_message: str | Sequence[Part] | None = None,
        /,
        **options: Unpack[NestedOptions],
    ) -> Response[Out]:
        """Evaluates another prompt as part of this call and returns its response.

        The evaluation is a complete nested run, which opens the sections that its model requests.
        It must end by the call's deadline. For types that the prompt does not bind, its tools use
        the call's resources, unless the prompt's own resources are already open. Its usage is added
        to the caller's, and both budgets apply. If the call fails, the run's changes are undone.
        Raises `PromptEvaluationError`; unless the handler catches it, the call fails.
        """
        arguments = self._arguments(user_message, options)
        return self.adapter.evaluate(self._with_resources(prompt), **arguments)

    # Not `async def`: the adapter must copy the prompt's bindings when it is called.
    def evaluate_async[Out](
        self,
        prompt: "DeclaresOutput[Out]",
        user_message: str | Sequence[Part] | None = None,
        /,
        **options: Unpack[NestedOptions],
    ) -> Coroutine[object, None, Response[Out]]:
        """Like `evaluate`, without blocking the event loop; for `async def` handlers."""
        arguments = self._arguments(user_message, options)
        return self.adapter.evaluate_async(self._with_resources(prompt), **arguments)

    def _with_resources[Out](self, prompt: "DeclaresOutput[Out]") -> "DeclaresOutput[Out]":
        """Returns the prompt, or a copy to which the call's resources are added."""
        # Any: a `Prompt`, a template, or a `RenderedPrompt` with its prompt
        given: Any = prompt
        if not hasattr(given, "prompt") and not hasattr(given, "template"):
            given = prompt = given.bind()
        source = getattr(given, "prompt", given)
        if source is None or source.resources.is_open:
            return prompt
        own = source.resources.registry
        kinds = {binding.protocol for binding in own.bindings}
        inherited = [
            Binding(binding.protocol, partial(_get_from, self, binding.protocol), owned=False)
            for binding in self.prompt.resources.registry.bindings
            if binding.protocol not in kinds
        ]
        if not inherited:
            return prompt
        copied = copy(source)
        copied.resources = ResourceContext(own | ResourceRegistry.of(*inherited))
        result: DeclaresOutput[Out] = copied if given is source else replace(given, prompt=copied)
        return result

    # Any: an adapter with the seed's signature does not accept `message` or `adapter`
    def _arguments(
        self, message: str | Sequence[Part] | None, options: NestedOptions
    ) -> dict[str, Any]:
        if message is not None:
            options["message"] = message
        own = {"session": self.session, "bus": self.event_bus, "deadline": self.deadline}
        return {**own, **options}

    if not TYPE_CHECKING:  # or type checkers would assume that the class has every attribute

        def __getattr__(self, name: str) -> object:
            # Python calls this only for missing attributes, so access during the call remains fast.
            if name not in _REVOCABLE:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            raise RuntimeError(
                f"context.{name} cannot be used because tool call {self.call_id!r} has finished; "
                "read it during the call, and stop threads and tasks before the handler returns"
            )


def _get_from[T](context: ToolContext, kind: KindOf[T], _: Resources) -> T:
    return context.resources.get(kind)


_REVOCABLE = ("session", "event_bus", "resources")


def revoke(context: ToolContext) -> None:
    """Removes everything that can change state from `context`; called after the tool call."""
    for name in _REVOCABLE:
        object.__delattr__(context, name)
