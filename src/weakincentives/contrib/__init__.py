"""Bridges to further packages, each an extra: durable runs, OpenTelemetry, MCP, skills."""
