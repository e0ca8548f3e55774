"""Re-exports the session protocols, which are defined in `weakincentives.protocols`."""

from ...protocols import SessionProtocol, SliceAccessor, SliceView, StateView

__all__ = ["SessionProtocol", "SliceAccessor", "SliceView", "StateView"]
