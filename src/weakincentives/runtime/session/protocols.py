"""The session as other layers name it; defined among the ports."""

from ...protocols import SessionProtocol, SliceAccessor, SliceView, StateView

__all__ = ["SessionProtocol", "SliceAccessor", "SliceView", "StateView"]
