"""What looks at prompts and at logs of runs; nothing that runs imports it."""
