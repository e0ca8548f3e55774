"""Test doubles and fixtures' raw material; nothing here is shipped."""
