"""Evaluate prompts on cases, and compare two variants honestly."""
