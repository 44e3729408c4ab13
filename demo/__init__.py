"""`make demo`: five prompts and a summary on a local Ray, with and without speculation."""
