"""Bridges to further packages, each an extra: AG-UI, durable runs, OpenTelemetry, MCP, skills."""
