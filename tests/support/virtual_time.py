"""The real engines and relays in simulated time: a pass takes what a `PassCost` says, a hop its
delay, and everything else nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.pipeline import QueuedWorker, worker_info
from torch import Tensor

from drafter_service.engine import DrafterEngine
from drafter_service.model import ModelDrafter
from orchestrator.relay import Relay
from orchestrator.relay_settings import RelaySettings
from orchestrator.router import Router
from paceline.config import RuntimeConfig, VerifierConfig
from paceline.runtime.page_table import PageTable
from paceline.runtime.pass_cost import PassCost
from paceline.runtime.runner import Chunk, Runner
from paceline.sampling.params import SamplingParams
from paceline.simulation.clock import Clock
from paceline.simulation.scenario import Scenario
from verifier_service.verifier import Verifier


class MeteredRunner:
    """A `Runner` that notes what its passes would take."""

    def __init__(self, runner: Runner, cost: PassCost) -> None:
        self.pool = runner.pool
        self.vocab_size = runner.vocab_size
        self.context_length = runner.context_length
        self.seconds = 0.0
        self._runner = runner
        self._cost = cost

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        self.seconds += self._cost.seconds(num_tokens, len(chunks))
        return self._runner.forward(chunks)

    def keep(self, table: PageTable, start: int, nodes: Sequence[int]) -> None:
        self._runner.keep(table, start, nodes)

    def fork(self, table: PageTable, lengths: Sequence[int], num_tokens: int) -> list[PageTable]:
        return self._runner.fork(table, lengths, num_tokens)


class TimedWorker(QueuedWorker):
    """A worker whose hops and passes take their time."""

    def __init__(
        self,
        role: str,
        engine: Any,
        info: Any,
        *,
        meter: MeteredRunner,
        clock: Clock,
        delay_s: float,
    ) -> None:
        super().__init__(role, engine, info)
        self.busy_s = 0.0
        self.heard_at = 0.0
        """When its last reply reached the orchestrator."""
        self.meter = meter
        self._clock = clock
        self._delay_s = delay_s
        self.is_busy = False
        """Whether a step is under way."""
        self._inbox: list[Any] = []

    def send(self, event: Any) -> int:
        self._clock.after(self._delay_s, self._arrive, event)
        return 1

    def _arrive(self, event: Any) -> None:
        self._inbox.append(event)
        self._clock.when_quiet(self._turn)

    def _turn(self) -> None:
        """One turn of the engine thread: take what has come, then a step."""
        if self.is_busy:
            return
        now = self._clock.now
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            self._deliver([reply for _, reply in self.engine.handle(self.link, event, now)])
        due = self.engine.next_step_at(now)
        if due is None:
            return
        if due > now:
            self._clock.at(due, self._turn)
            return
        before = self.meter.seconds
        replies = [reply for _, reply in self.engine.step(now)]
        seconds = self.meter.seconds - before
        self.busy_s += seconds
        self.is_busy = True
        self._clock.at(now + seconds, self._end, replies)

    def _end(self, replies: list[Any]) -> None:
        self.is_busy = False
        self._deliver(replies)
        self._clock.when_quiet(self._turn)

    def _deliver(self, replies: list[Any]) -> None:
        for reply in replies:
            self._clock.after(self._delay_s, self._hear, reply)

    def _hear(self, reply: Any) -> None:
        self.heard_at = self._clock.now
        self.replies.append(reply)
        self.take_reply()


class TimedServices:
    """Drafter, verifier and orchestrator of a scenario, around two given models."""

    def __init__(self, scenario: Scenario, target: Runner, draft: Runner) -> None:
        self.clock = Clock()
        self.scenario = scenario
        runtime = RuntimeConfig(max_batch_tokens=scenario.max_batch_tokens)
        config = VerifierConfig(
            draft_patience_ms=scenario.draft_patience_s * 1e3,
            max_drafts_per_pass=scenario.max_drafts_per_pass,
            runtime=runtime,
        )
        target_meter = MeteredRunner(target, scenario.verify)
        draft_meter = MeteredRunner(draft, scenario.draft)
        infos = [worker_info(kind, target.vocab_size) for kind in ("verifier", "model")]
        self.engine = Verifier(target_meter, config, infos[0])
        drafter = DrafterEngine(ModelDrafter(draft_meter, runtime, infos[1]))
        self.verifier = TimedWorker(
            "verifier",
            self.engine,
            infos[0],
            meter=target_meter,
            clock=self.clock,
            delay_s=scenario.verifier_delay_s,
        )
        self.drafter = TimedWorker(
            "drafter",
            drafter,
            infos[1],
            meter=draft_meter,
            clock=self.clock,
            delay_s=scenario.drafter_delay_s,
        )
        workers: Any = [self.verifier], [self.drafter]
        self._router = Router(*workers)
        self.verifier.on_change()

    def clocks(self) -> dict[str, Callable[[], float]]:
        """What the modules' own clocks would show: the time of day, and that of each device."""
        return {
            "orchestrator.relay": lambda: self.clock.now,
            "drafter_service.engine": lambda: self.drafter.meter.seconds,
            "verifier_service.ragged_pass": lambda: self.verifier.meter.seconds,
        }

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sequence[SamplingParams],
        *,
        max_window: int | None = None,
    ) -> list[Relay]:
        """All generations, from time 0 to their ends; with `max_window` their windows adapt."""
        scenario = self.scenario
        settings = RelaySettings(
            speculation=scenario.speculation,
            adaptive=max_window is not None,
            start_window=scenario.window,
            window=max_window or scenario.window,
            num_speculative_tokens=min(scenario.num_speculative_tokens, scenario.window),
            draft_top_k=0,
            commit_credit=10**6,
            failover_timeout_s=0.0,
            reproducible=False,
            num_outcome_tokens=scenario.num_outcome_tokens,
        )
        relays = [
            Relay(self._router, tuple(prompt), params, settings)
            for prompt, params in zip(prompts, sampling, strict=True)
        ]
        for relay in relays:
            relay._later = self.clock.after
            relay.start()
        self.clock.run()
        return relays
