"""Resources: objects that tools use alongside the session, bound by type and created on demand.

A `ResourceRegistry` says what is bound; a `ResourceContext` makes and holds the resources while it
is open. Nothing here knows prompts or sessions.
"""

from .bindings import (
    Bindable,
    Binding,
    NotIsolatedError,
    ResourceError,
    ResourceRegistry,
    Scope,
)
from .container import CallResources, ForkedResources, ResourceContext, release

__all__ = [
    "Bindable",
    "Binding",
    "CallResources",
    "ForkedResources",
    "NotIsolatedError",
    "ResourceContext",
    "ResourceError",
    "ResourceRegistry",
    "Scope",
    "release",
]
