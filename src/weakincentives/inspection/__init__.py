"""Tools that analyze prompts and logged runs; code that runs prompts does not import them."""
