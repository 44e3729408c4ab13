"""The values that cross seams: what the three services say to each other, free of protobuf.

Every event belongs to one session and is immutable. The wire form of each is the message of the
same name in `protos/`; `paceline.rpc.codec` turns one into the other.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from paceline.sampling.params import SamplingParams
from paceline.tree_shape import TreeShape

if TYPE_CHECKING:
    from paceline.features import Features
    from paceline.generation import TraceSpan
    from paceline.sampling.draft_probs import DraftProbs

SessionId: TypeAlias = int


class Origin(enum.Enum):
    """Where a committed token came from."""

    PREFILL = "prefill"
    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    AUTOREGRESSIVE = "autoregressive"


class FinishReason(enum.Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class DrafterState(enum.Enum):
    """Whether the drafter goes on by itself after a block."""

    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Opens a session on a worker.

    `token_ids` is the prompt followed by what was committed before a reopening; `prompt_length`
    says where the prompt ends. `sampling.max_tokens` counts from the end of the prompt.
    `reproducible`: the same request gives the same ids again, so nothing that depends on timing
    may decide which numbers a token is drawn with (see `docs/decisions/`). `grammar` is what the
    output must match, as llguidance reads it; empty allows anything. KV pages are shared only with
    sessions of the same `cache_salt`.
    """

    session_id: SessionId
    token_ids: tuple[int, ...]
    prompt_length: int
    sampling: SamplingParams
    window: int
    num_speculative_tokens: int
    draft_top_k: int
    committed_limit: int
    speculation: bool
    epoch: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    reproducible: bool = False
    grammar: str = ""
    cache_salt: str = ""
    features: bool = False
    """Whether verdicts, and so advances, carry the target's features."""
    trace_context: Mapping[str, str] = field(default_factory=dict)
    num_outcome_tokens: int = 0
    """Drafts behind each outcome that is drafted ahead; 0: none is."""

    @property
    def max_length(self) -> int:
        """Length that the session never exceeds: prompt and `max_tokens`."""
        return self.prompt_length + self.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Frees everything that the session holds on a worker."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Contiguous proposed tokens; empty to tell a change of state only.

    `draft_probs` is None when each token's draft distribution is a point mass.
    `known_committed` is the committed length that the drafter had heard of. A block that branches
    has `parents` (see `TreeShape`): its tokens are the nodes, and nothing is drafted behind it
    until its verdict has come. `copied` are the indexes of tokens that were copied by a drafter
    that has a model besides; `draft_us` is then the time of the others.

    With an `outcome` it was drafted ahead: it holds if the epoch that it names begins with that id
    at position `base - 1`, in place of a draft, and is void otherwise.
    """

    session_id: SessionId
    epoch: int
    base: int
    token_ids: tuple[int, ...]
    draft_probs: DraftProbs | None
    known_committed: int
    state: DrafterState
    kv_length: int
    draft_us: int
    parents: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    outcome: int | None = None

    @property
    def tree(self) -> TreeShape | None:
        """How the tokens hang together; None for a chain."""
        return TreeShape(self.parents) if self.parents else None


@dataclass(frozen=True, slots=True)
class Advance:
    """Tokens became final; tells the drafter. Contiguous and in order within a session.

    `window` and `num_speculative_tokens` hold from now on; None leaves them as they are, and a
    window of 0 drafts nothing until it is opened again. Where one drafter copies and draws from a
    model (`cascade`), `draw_window` and `num_drawn_tokens` say the same of what is drawn.
    Nothing is drawn behind drafts that are all right with a probability below `min_confidence`, nor
    copied below `min_copy_confidence`: the block ends.
    """

    session_id: SessionId
    epoch: int
    base: int
    token_ids: tuple[int, ...]
    window: int | None = None
    num_speculative_tokens: int | None = None
    draw_window: int | None = None
    num_drawn_tokens: int | None = None
    min_confidence: float | None = None
    min_copy_confidence: float | None = None
    features: Features | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """How far the verifier may commit."""

    session_id: SessionId
    committed_limit: int


@dataclass(frozen=True, slots=True)
class SetSpeculation:
    """Whether draft blocks are to be expected, for how long, and how many drafts a pass judges at
    most; None is as configured."""

    session_id: SessionId
    enabled: bool
    patience_us: int | None = None
    max_drafts_per_pass: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of a committed token under the target, before sampling parameters apply."""

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PassTimings:
    """One engine step as a session saw it: times in microseconds, sizes of the whole pass."""

    queue_us: int
    forward_us: int
    judge_us: int
    rows: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one pass decided for one session.

    `token_ids` are the committed tokens: `accepted_length` accepted drafts, then the next token,
    whose origin is `next_origin` (None when there is no next token). `epoch` holds after it. Of a
    draft that branches the accepted tokens are a path, and no other path has the same.
    `target_probs` are the committed tokens' under the target's law, where a trace asks for them.
    The first verdict of a generation tells how many of the prompt's tokens were found cached.
    """

    session_id: SessionId
    epoch: int
    base: int
    token_ids: tuple[int, ...]
    accepted_length: int
    next_origin: Origin | None
    num_judged: int
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...]
    kv_length: int
    timings: PassTimings
    num_discarded: int
    target_probs: tuple[float, ...] = ()
    cached_prompt_tokens: int = 0
    features: Features | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of the prompt's ids from position `base` on, before the first verdict."""

    session_id: SessionId
    base: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """The target's features of what a session was opened with, before the first verdict."""

    session_id: SessionId
    features: Features


@dataclass(frozen=True, slots=True)
class SessionSpans:
    """A worker's spans of a session whose trace asked for them; the last of them ends it."""

    session_id: SessionId
    spans: tuple[TraceSpan, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class SessionError:
    """A session failed and was freed; `code` is the name of a gRPC status code."""

    session_id: SessionId
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker is and how full; see `WorkerDescription` in `protos/common.proto`."""

    kind: str
    model: str
    dtype: str
    quantization: str
    device: str
    vocab_size: int
    tokenizer_fingerprint: str
    context_length: int
    eos_token_ids: tuple[int, ...] = ()
    device_id: str = ""
    device_share: float = 0.0
    kv_page_size: int = 0
    kv_pages_total: int = 0
    kv_pages_used: int = 0
    kv_pages_reserved: int = 0
    """Held, or promised to sessions that may come to need them."""
    live_sessions: int = 0
    waiting_sessions: int = 0
    peak_memory_bytes: int = 0
    feature_size: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)

    def competes_with(self, other: WorkerInfo) -> bool:
        """Whether the two cannot compute at once without slowing each other down."""
        is_same = self.device_id != "" and self.device_id == other.device_id
        return is_same and self.device_share + other.device_share > 1.0


DrafterEvent: TypeAlias = OpenSession | Advance | CloseSession
DrafterReply: TypeAlias = DraftBlock | SessionSpans | SessionError
VerifierEvent: TypeAlias = OpenSession | DraftBlock | Credit | SetSpeculation | CloseSession
VerifierReply: TypeAlias = Verdict | PromptLogprobs | PromptFeatures | SessionSpans | SessionError
