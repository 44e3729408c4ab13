"""Drafts with a small language model: a token, or a level of a tree, a session and step, all
sessions in one pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from drafter_service.draft_run import DraftRun
from drafter_service.drafter import Proposal, ProposeRequest
from drafter_service.drawing import Drawing
from drafter_service.tree_drafting import Step, TreeDrafting
from paceline.config import RuntimeConfig, TreeConfig
from paceline.errors import InvalidArgumentError
from paceline.runtime.admission import AdmissionQueue
from paceline.runtime.emulated import device_counters
from paceline.runtime.engine_thread import SessionKey
from paceline.runtime.grammar import GrammarEngine, GrammarMatcher
from paceline.runtime.page_table import PageTable
from paceline.runtime.prefix_cache import PrefixCache
from paceline.runtime.runner import Chunk, Runner
from paceline.runtime.scheduler import share_budget
from paceline.runtime.warm_up import warm_up
from paceline.sampling.columns import Columns
from paceline.tree_shape import ROOT
from paceline.types import OpenSession, WorkerInfo

logger = logging.getLogger(__name__)

MAX_COMPLETED = 4
"""Tokens that are computed after a session's end if a page for the next turn lacks just them: the
last draft and what the verifier said after it were never fed."""


class ModelDrafter:
    """Any causal language model over a paged KV pool.

    A session without room in the pool waits; meanwhile its proposals are empty, so that the
    verifier decodes without it. `columns` are those of the runner's logits, where they are not all
    ids of the vocabulary. A block ends with a token before which the model's confidence was below
    `min_confidence`, or that in all of its drafts below the request's.
    """

    def __init__(
        self,
        runner: Runner,
        config: RuntimeConfig,
        info: WorkerInfo,
        grammar: GrammarEngine | None = None,
        tree: TreeConfig | None = None,
        *,
        columns: Columns | None = None,
        min_confidence: float = 0.0,
    ) -> None:
        self.context_length = runner.context_length
        self._runner = runner
        self._drawing = Drawing(columns, min_confidence)
        self._is_undisturbed: Callable[[], bool] = lambda: False
        self._budget = config.max_batch_tokens
        self._info = info
        self._tables: dict[SessionKey, PageTable] = {}
        self._openings: dict[SessionKey, OpenSession] = {}
        self._prefixes = PrefixCache(runner.pool, enabled=config.prefix_reuse)
        self._trees = TreeDrafting(tree or TreeConfig(), runner, knows_all_ids=columns is None)
        self._grammar = grammar
        self._matchers: dict[SessionKey, GrammarMatcher] = {}
        # Waiting costs a session nothing but drafts, so it may wait for as long as it lives.
        self._waiting: AdmissionQueue[SessionKey] = AdmissionQueue(
            runner.pool, max_waiting_s=float("inf"), max_waiting_sessions=2**31
        )

    def warm_up(self) -> None:
        warm_up(self._runner)

    def draw_while(self, is_undisturbed: Callable[[], bool]) -> None:
        """From now on draw tokens one after the other in one proposal while that holds."""
        self._is_undisturbed = is_undisturbed

    def reserve(self, key: SessionKey, opening: OpenSession) -> None:
        if opening.vocab_size < 1:
            raise InvalidArgumentError("vocab_size", f"{opening.vocab_size} is below 1")
        wrong = next((i for i in opening.token_ids if not 0 <= i < self._runner.vocab_size), None)
        if wrong is not None:
            raise InvalidArgumentError(
                "token_ids", f"{wrong} is outside the drafter's {self._runner.vocab_size} ids"
            )
        if opening.grammar and self._grammar is not None:
            self._matchers[key] = self._grammar.matcher(
                opening.grammar,
                prompt_length=opening.prompt_length,
                end_ids=opening.eos_token_ids,
            )
        is_within = len(opening.token_ids) < self.context_length  # else it is never drafted for
        keys = self._prefixes.keys(opening.token_ids, salt=opening.cache_salt) if is_within else ()
        max_length = min(opening.max_length, self.context_length)
        self._waiting.enter(key, max_length, now=0.0, prefix=keys)
        self._openings[key] = opening
        self._admit()

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        proposals = [Proposal(is_waiting=request.key not in self._tables) for request in requests]
        chunks: list[Chunk] = []
        begun: list[tuple[ProposeRequest, PageTable, int]] = []
        finishing: list[int] = []
        steps: list[Step] = []
        for index, granted in self._schedule(requests):
            request = requests[index]
            proposals[index] = Proposal(is_pending=True, num_read=granted)
            if granted and (nodes := self._trees.frontier(request.key)):
                table = self._tables[request.key]
                chunks.append(self._trees.chunk(request.key, table, nodes))
                finishing.append(index)
                steps.append(Step(request, nodes))
            elif granted:
                table = self._tables[request.key]
                token_ids = request.token_ids[table.length : table.length + granted]
                is_last = table.length + granted == len(request.token_ids)
                chunks.append(Chunk(table, token_ids, num_logits=int(is_last)))
                begun.append((request, table, table.length))
                if is_last:
                    finishing.append(index)
                    steps.append(Step(request, (ROOT,)))
        if chunks:
            logits = self._runner.forward(chunks)
        for request, table, start in begun:
            self._note_prompt(request.opening, table, start)
        if finishing:
            drawn = self._take(logits, steps)
            for index, proposal in zip(finishing, drawn, strict=True):
                proposals[index] = replace(proposal, num_read=proposals[index].num_read)
                if not isinstance(proposal.error, InvalidArgumentError | None):
                    self._tables[requests[index].key].disown()  # what is cached may be at fault
        if len(finishing) == len(requests) and self._is_undisturbed():
            return self._run_on(requests, proposals)
        return proposals

    def _run_on(
        self, requests: Sequence[ProposeRequest], proposals: list[Proposal]
    ) -> list[Proposal]:
        """Draw further tokens for all of them, if each has its first and may go on from it."""
        if not all(map(self._may_run, requests, proposals)):
            return proposals
        runs = [
            DraftRun(request, self._tables[request.key], proposal)
            for request, proposal in zip(requests, proposals, strict=True)
        ]
        while all(run.has_room for run in runs) and self._is_undisturbed():
            try:
                logits = self._runner.forward([run.chunk() for run in runs])
                if not self._drawing.extend(logits, runs):
                    break
            except Exception as error:  # the next step meets it again, and tells of it
                logger.debug("a run has ended early: %s", error)
                break
        return [run.proposed() for run in runs]

    def _may_run(self, request: ProposeRequest, proposal: Proposal) -> bool:
        """Whether more may follow a proposal's draw at once: it is one of a chain, and no grammar
        has to see it first."""
        return (
            len(proposal.draws) == 1
            and proposal.tree is None
            and request.key not in self._matchers
            and not self._trees.wants(request)
        )

    def _note_prompt(self, opening: OpenSession, table: PageTable, start: int) -> None:
        """After a pass from position `start` on: count the prompt's part of it, and offer that.

        The last token is withheld: a session may have to feed it again.
        """
        num_opened = len(opening.token_ids)
        self._prefixes.count_computed(len(range(start, min(table.length, num_opened))))
        if start < num_opened:
            self._prefixes.publish(
                table, opening.token_ids, num_opened - 1, salt=opening.cache_salt
            )

    def _schedule(self, requests: Sequence[ProposeRequest]) -> list[tuple[int, int]]:
        """(request, tokens of the next pass), perhaps 0; decoding goes before prompts.

        Left out are sessions that wait for room in the pool, are as ready as they shall be, or
        whose output has ended.
        """
        decodes: list[tuple[int, int]] = []
        prefills: list[tuple[int, int]] = []
        for index, request in enumerate(requests):
            table = self._tables.get(request.key)
            length = len(request.token_ids) - (request.limit == 0)
            if table is not None and self._trees.goes_on(request):
                decodes.append((index, len(self._trees.frontier(request.key))))
                continue
            if table is not None:
                self._trees.settle(request.key, table, request.token_ids)
                opening = request.opening
                self._prefixes.adopt(table, opening.token_ids, salt=opening.cache_salt)
            if table is not None and request.limit and table.length == length:
                table.truncate(length - 1)  # a rollback left no token to feed: its row is needed
            if table is not None and table.length < length and self._goes_on(request):
                num_uncached = length - table.length
                kind = decodes if num_uncached <= request.opening.window else prefills
                kind.append((index, num_uncached))
        grants = share_budget([n for _, n in decodes], [n for _, n in prefills], self._budget)
        indexes = [index for index, _ in decodes + prefills]
        return list(zip(indexes, grants[0] + grants[1], strict=True))

    def _goes_on(self, request: ProposeRequest) -> bool:
        """Whether a guided output can: after its end nothing is left to guess."""
        matcher = self._matchers.get(request.key)
        if matcher is None:
            return True
        matcher.extend(request.token_ids[matcher.length :])
        return matcher.length == len(request.token_ids)

    def _take(self, logits: Tensor, steps: Sequence[Step]) -> list[Proposal]:
        """What the rows of a pass lead to: a token each, or trees that grow."""
        branching = [self._trees.wants(step.request) for step in steps]
        if not any(branching):
            return self._draw(logits, [step.request for step in steps])
        parts = logits.split([len(step.nodes) for step in steps])
        proposals: dict[int, Proposal] = {}
        for is_tree in (False, True):
            members = [i for i, branches in enumerate(branching) if branches is is_tree]
            if members:
                rows = torch.cat([parts[i] for i in members])
                chosen = [steps[i] for i in members]
                found = (
                    self._grow(rows, chosen)
                    if is_tree
                    else self._draw(rows, [step.request for step in chosen])
                )
                proposals.update(zip(members, found, strict=True))
        return [proposals[i] for i in range(len(steps))]

    def _grow(self, logits: Tensor, steps: Sequence[Step]) -> list[Proposal]:
        """Let each session's tree grow by the rows of its nodes."""
        rows = self._drawing.whole_rows(logits, [step.request for step in steps])
        return self._trees.take(rows, steps, self._matchers)

    def _draw(self, logits: Tensor, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        return self._drawing.propose(logits, requests, self._matchers)

    def rollback(self, key: SessionKey, length: int) -> None:
        if key in self._matchers:
            self._matchers[key].truncate(length)
        table = self._tables.get(key)
        if table is not None and not self._trees.outlasts(key, length):
            table.truncate(min(table.length, length))

    # --- other outcomes ---------------------------------------------------------------------

    @property
    def wants_room(self) -> bool:
        """Whether sessions wait for pages."""
        return len(self._waiting) > 0

    def fork(
        self, key: SessionKey, branches: Sequence[tuple[SessionKey, int]], num_tokens: int
    ) -> int:
        """Branches that share the session's pages; see `Forks`.

        None where drafts branch already, a grammar has to see them, or blocks end where the model
        is unsure. Sessions that wait for room go before.
        """
        table = self._tables.get(key)
        is_plain = not self._trees.is_on and not self._drawing.ends_blocks
        if table is None or not is_plain or key in self._matchers or self.wants_room:
            return 0
        forked = self._runner.fork(table, [length for _, length in branches], num_tokens)
        for (branch, _), own in zip(branches, forked, strict=False):
            self._tables[branch] = own
        return len(forked)

    def graft(self, key: SessionKey, branch: SessionKey) -> None:
        self._tables[key].graft(self._tables.pop(branch))
        self._admit()

    def prune(self, branch: SessionKey) -> None:
        table = self._tables.pop(branch, None)
        if table is not None:
            table.free()
            self._admit()

    # --- the end ----------------------------------------------------------------------------

    def release(self, key: SessionKey, committed: Sequence[int] = ()) -> None:
        self._waiting.leave(key)
        self._matchers.pop(key, None)
        table = self._tables.pop(key, None)
        opening = self._openings.pop(key, None)
        if table is not None and opening is not None:
            self._trees.settle(key, table, committed)
            self._complete_page(table, committed)
            self._prefixes.publish(table, committed, len(committed), salt=opening.cache_salt)
            table.free()
        self._admit()

    def _complete_page(self, table: PageTable, committed: Sequence[int]) -> None:
        """Compute the few tokens that the last page lacks which the verifier has in full."""
        end = min(len(committed) - 1, self.context_length)
        end -= end % self._runner.pool.page_size
        missing = committed[table.length : end]
        if self._prefixes.enabled and 0 < len(missing) <= MAX_COMPLETED:
            try:
                self._runner.forward([Chunk(table, missing, num_logits=0)])
            except Exception:  # nobody waits for it
                logger.exception("a page could not be completed for later sessions")

    def _admit(self) -> None:
        for key, table in self._waiting.admit():
            self._tables[key] = table
            self._prefixes.count_reused(table.length)

    def kv_length(self, key: SessionKey) -> int:
        table = self._tables.get(key)
        return 0 if table is None else table.length

    def describe(self) -> WorkerInfo:
        pool = self._runner.pool
        return replace(
            self._info,
            kv_page_size=pool.page_size,
            kv_pages_total=pool.num_pages,
            kv_pages_used=pool.used_pages,
            kv_pages_reserved=pool.reserved_pages,
            waiting_sessions=len(self._waiting),
            counters=device_counters(self._runner) | self._prefixes.counters,
        )
