"""The whole pipeline in one thread: real engines and a real relay, joined by queues instead of
gRPC, so that a test decides in which order everything happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from drafter_service.cascade import CascadeDrafter
from drafter_service.drafter import Drafter
from drafter_service.engine import DrafterEngine
from drafter_service.model import ModelDrafter
from drafter_service.ngram_reader import NgramReader
from orchestrator.relay import Relay
from orchestrator.relay_settings import RelaySettings
from orchestrator.router import Router
from orchestrator.worker import WorkerSession
from paceline.config import CascadeConfig, NgramConfig, RuntimeConfig, TreeConfig, VerifierConfig
from paceline.errors import PacelineError, UnavailableError
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.scripted import ScriptedRunner
from paceline.sampling.params import SamplingParams
from paceline.types import CloseSession, SessionError, Verdict, WorkerInfo
from verifier_service.verifier import Verifier


def worker_info(kind: str, vocab_size: int, eos_token_ids: Sequence[int] = ()) -> WorkerInfo:
    """The description of a scripted worker."""
    return WorkerInfo(
        kind=kind,
        model="scripted",
        dtype="float32",
        quantization="none",
        device="cpu",
        vocab_size=vocab_size,
        tokenizer_fingerprint="",
        context_length=4096,
        eos_token_ids=tuple(eos_token_ids),
    )


def cascade_of(
    runner: ScriptedRunner,
    smallest: int,
    largest: int,
    *,
    margin: float = 0.1,
    runtime: RuntimeConfig | None = None,
    grammar: GrammarEngine | None = None,
) -> CascadeDrafter:
    """Copying of matches from `smallest` to `largest` tokens, and a scripted model."""
    info = worker_info("cascade", runner.vocab_size)
    model = ModelDrafter(runner, runtime or RuntimeConfig(), info, grammar)
    reader = NgramReader(NgramConfig(min_match=smallest, max_match=largest))
    return CascadeDrafter(reader, model, CascadeConfig(margin=margin))


class QueuedWorker:
    """Stands where `orchestrator.worker.Worker` stands; every hop waits to be made by hand."""

    def __init__(self, role: str, engine: Any, info: WorkerInfo) -> None:
        self.role = role
        self.address = role
        self.engine = engine
        self.info = info
        self.problem = ""
        self.is_connected = True
        self.is_draining = False
        self.room_tokens = float("inf")
        self.on_change: Callable[[], None] = lambda: None
        self.events: deque[Any] = deque()
        self.replies: deque[Any] = deque()
        self.link = 1
        self._next_id = 1
        self._handlers: dict[int, tuple[Callable[..., None], Callable[..., None]]] = {}

    @property
    def num_sessions(self) -> int:
        return len(self._handlers)

    @property
    def load(self) -> int:
        return self.num_sessions

    def open_session(self, on_reply: Any, on_lost: Any, *, num_tokens: int = 0) -> Any:
        if not self.is_connected:
            raise UnavailableError(f"{self.role} is down")
        session_id, self._next_id = self._next_id, self._next_id + 1
        self._handlers[session_id] = (on_reply, on_lost)
        return WorkerSession(self, session_id)  # type: ignore[arg-type]

    def send(self, event: Any) -> int:
        if self.is_connected:
            self.events.append(event)
        return 1

    def close_session(self, session_id: int) -> None:
        if self._handlers.pop(session_id, None) is not None:
            self.send(CloseSession(session_id))

    # --- hops, each made by the test ----------------------------------------------------------

    def take_event(self, now: float = 0.0) -> None:
        event = self.events.popleft()
        self.replies.extend(r for _, r in self.engine.handle(self.link, event, now))

    def step(self, now: float) -> None:
        self.replies.extend(reply for _, reply in self.engine.step(now))

    def take_reply(self) -> None:
        reply = self.replies.popleft()
        handlers = self._handlers.get(reply.session_id)
        if isinstance(reply, SessionError):
            self._handlers.pop(reply.session_id, None)
        if handlers is not None:
            handlers[0](reply, 1)

    def is_ready(self, now: float) -> bool:
        due = self.engine.next_step_at(now)
        return due is not None and due <= now

    def lose(self) -> None:
        """The link breaks: everything in flight is gone, the engine frees its sessions."""
        self.is_connected = False
        self.events.clear()
        self.replies.clear()
        self.engine.close_link(self.link)
        self.link += 1
        lost, self._handlers = self._handlers, {}
        for _, on_lost in lost.values():
            on_lost(UnavailableError(f"{self.role} is lost"))
        self.on_change()

    def restore(self) -> None:
        self.is_connected = True
        self.on_change()


class Pipeline:
    """One verifier, one drafter, any number of relays, and a clock that the test moves."""

    def __init__(
        self,
        target: ScriptedRunner,
        drafter: Drafter | ScriptedRunner | None,
        *,
        eos_token_ids: Sequence[int] = (),
        verifier_config: VerifierConfig | None = None,
        runtime: RuntimeConfig | None = None,
        grammar: GrammarEngine | None = None,
        tree: TreeConfig | None = None,
    ) -> None:
        self.now = 0.0
        vocab_size = target.vocab_size
        self.verifier_engine = Verifier(
            target,
            verifier_config or VerifierConfig(draft_patience_ms=10),
            worker_info("verifier", vocab_size, eos_token_ids),
            grammar,
        )
        self.target = target
        self.verifier = QueuedWorker(
            "verifier", self.verifier_engine, worker_info("verifier", vocab_size, eos_token_ids)
        )
        if isinstance(drafter, ScriptedRunner):
            info = worker_info("model", drafter.vocab_size)
            drafter = ModelDrafter(drafter, runtime or RuntimeConfig(), info, grammar, tree)
        self.drafter = (
            None
            if drafter is None
            else QueuedWorker("drafter", DrafterEngine(drafter), worker_info("model", vocab_size))
        )
        workers: Any = [self.verifier], [self.drafter] if self.drafter else []
        self.router = Router(*workers)
        self.verifier.on_change()

    def open(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        window: int = 12,
        num_speculative_tokens: int = 4,
        draft_top_k: int = 0,
        speculation: bool = True,
        reproducible: bool = False,
        commit_credit: int = 1000,
        grammar: str = "",
        num_outcome_tokens: int = 0,
    ) -> Relay:
        """Start a generation."""
        settings = RelaySettings(
            speculation=speculation,
            window=window,
            num_speculative_tokens=min(num_speculative_tokens, window),
            draft_top_k=draft_top_k,
            commit_credit=commit_credit,
            failover_timeout_s=0.0,
            reproducible=reproducible,
            grammar=grammar,
            num_outcome_tokens=num_outcome_tokens,
        )
        relay = Relay(self.router, tuple(prompt), sampling, settings)
        relay.start()
        return relay

    def hops(self) -> list[Callable[[], None]]:
        """Everything that could happen next."""
        possible: list[Callable[[], None]] = []
        for worker in filter(None, (self.verifier, self.drafter)):
            if worker.events:
                possible.append(lambda w=worker: w.take_event(self.now))
            if worker.replies:
                possible.append(worker.take_reply)
            if worker.is_connected and worker.is_ready(self.now):
                possible.append(lambda w=worker: w.step(self.now))
        return possible

    def run(self, max_hops: int = 100_000) -> None:
        """Let everything happen, in a fixed order, until nothing is left to do."""
        for _ in range(max_hops):
            possible = self.hops()
            if possible:
                possible[0]()
                continue
            due = self.verifier_engine.next_step_at(self.now)
            if due is None:
                return
            self.now = due
        raise AssertionError("the pipeline does not come to rest")


def outputs(relay: Relay) -> list[int]:
    """The committed output ids so far."""
    return relay.session.tokens[relay.session.prompt_length :]


def verdicts(relay: Relay) -> list[Verdict]:
    """The verdicts that wait for the client. Raises the error that ended the generation."""
    found = []
    queue = relay._verdicts
    while not queue.empty():
        item = queue.get_nowait()
        if isinstance(item, PacelineError):
            raise item
        found.append(item)
    return found


def reference(
    script: Callable[[Sequence[int]], Any],
    prompt: Sequence[int],
    num_tokens: int,
    ends: Sequence[int] = (),
) -> list[int]:
    """REF: the target alone, greedy, one token at a time, without a cache."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_tokens:
        tokens.append(int(script(tokens).argmax()))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]
