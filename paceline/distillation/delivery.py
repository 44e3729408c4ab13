"""What stands beside the checkpoint: figures, and a page that says how it was made."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from paceline.bench.machine import describe_machine
from paceline.distillation.cost import Cost, predicted_speedup
from paceline.distillation.recipe import TrainingSettings
from paceline.distillation.scores import Scores
from paceline.runtime.draft_vocabulary import DraftVocabulary

README = "README.md"


def cost_figures(scores: Scores, cost: Cost) -> dict[str, Any]:
    """Times in ms, and what they promise."""
    speedup, block = predicted_speedup(scores.by_depth, cost)
    return {
        "draft_step_ms": cost.draft_ms,
        "target_step_ms": cost.target_ms,
        "target_pass_ms": cost.verify_ms,
        "cost_ratio": round(cost.ratio, 4),
        "predicted_speedup": speedup,
        "predicted_block": block,
    }


def readme(
    vocabulary: DraftVocabulary, settings: TrainingSettings, command: str, older: str = ""
) -> str:
    """The page of a drafter whose figures are complete, and of the one that it began as."""
    figures = vocabulary.figures
    machine = describe_machine()
    hardware = f"{machine.cpu}, {machine.cores} cores" + "".join(f", {gpu}" for gpu in machine.gpus)
    depths = " | ".join(str(depth) for depth in range(1, len(figures["by_depth"]) + 1))
    shares = " | ".join(f"{share:.2f}" for share in figures["by_depth"])
    rows = {
        "greedy agreement": f"{figures['agreement']:.3f} (before"
        f" {figures['untrained_agreement']:.3f})",
        "overlap Σ min(target, draft)": f"{figures['overlap']:.3f} (before"
        f" {figures['untrained_overlap']:.3f})",
        "drafting step": f"{figures['draft_step_ms']:.1f} ms, {figures['cost_ratio']:.2f} of the"
        f" target's {figures['target_step_ms']:.1f} ms",
        "predicted speedup, greedy": f"{figures['predicted_speedup']:.2f} with blocks of"
        f" {figures['predicted_block']}",
        "draft ids": f"{vocabulary.num_draft_ids} of {vocabulary.vocab_size},"
        f" {100 * figures['draft_id_coverage']:.1f} % of what the target says",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""\
# A drafter for {vocabulary.target_name}

Layers {", ".join(map(str, vocabulary.layers))} of the target over {vocabulary.num_draft_ids} of \
its ids, trained on the target's own answers.
An ordinary checkpoint of transformers (quantization: {settings.quantization}), and \
`paceline_draft.json` with the map of ids and all
figures. It changes no text, only the speed.

## Recipe

```
{command}
```

- Data: {figures["answers"]} answers of the target, {figures["answer_tokens"]} tokens, with its \
most likely ids of each;
  made in {figures["data_seconds"]} s.
- Training: {settings.steps} steps of about {settings.tokens_per_step} tokens \
({figures["rounds"]} rounds over the answers), AdamW,
  highest learning rate {settings.learning_rate:g}, matrix products in \
{figures["compute_dtype"]}, rounded weights from
  {100 * settings.rounded_from:.0f} % of the steps on; {figures["training_seconds"]} s.
- Hardware: {hardware}. Seconds are by the clock, whatever else ran.

## Figures

On {figures["num_prompts"]} held-out prompts of kinds that no built-in training prompt is of, along
the target's greedy text ({figures["num_tokens"]} tokens), of the checkpoint as it is stored:

| | |
|---|---|
{table}

Share of places from which so many freely drafted tokens are all the target's:

| {depths} |
|{"---|" * len(figures["by_depth"])}
| {shares} |
{_began_as(older)}"""


def _began_as(page: str) -> str:
    """An older drafter's page as a part of this one."""
    if not page:
        return ""
    lower = re.sub(r"^(#+) ", r"##\1 ", page, flags=re.MULTILINE)
    return f"\n## What it began as\n\n{lower}"


def deliver(directory: Path, output: Path) -> None:
    """Copy a finished drafter to where it was wanted; its map of ids, which makes it one, last."""
    output.mkdir(parents=True, exist_ok=True)
    files = sorted(directory.iterdir(), key=lambda file: file.name == "paceline_draft.json")
    for file in files:
        started = output / f".{file.name}.part"
        shutil.copyfile(file, started)
        os.replace(started, output / file.name)
