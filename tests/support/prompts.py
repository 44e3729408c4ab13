"""The prompts of the demo and of the end-to-end tests."""

PROMPTS = (
    "The future of artificial intelligence is",
    "Machine learning is transforming the world by",
    "Natural language processing enables computers to understand",
    "Generative models like GPT-3 can create",
    "AI ethics and fairness are important considerations for",
)
NUM_TOKENS = 100
