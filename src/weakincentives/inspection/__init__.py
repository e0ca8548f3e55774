"""Reads prompts and logs of runs for their authors; nothing that runs a prompt imports it."""
