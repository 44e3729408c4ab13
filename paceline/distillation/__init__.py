"""Makes a drafter for a target: prompts, the target's answers, a student of them, its figures."""
