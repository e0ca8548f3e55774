"""Resources: objects that tools use alongside the session, bound by type and created on demand.

A `ResourceRegistry` defines the bindings; a `ResourceContext` creates resources and keeps them
while it is open. This package does not depend on prompts or sessions.
"""

from .bindings import Bindable, Binding, NotIsolatedError, ResourceError, ResourceRegistry, Scope
from .container import CallResources, ForkedResources, ResourceContext
from .instances import release

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
