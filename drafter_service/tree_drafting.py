"""The growing trees of a model drafter: what each session feeds next, and what it makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from drafter_service.drafter import Proposal, ProposeRequest
from drafter_service.ngram_reader import end_ids
from drafter_service.tree_growth import TreeGrowth
from paceline.config import TreeConfig
from paceline.errors import InvalidArgumentError, PacelineError
from paceline.runtime.engine_thread import SessionKey
from paceline.runtime.grammar import GrammarMatcher
from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk, Runner
from paceline.sampling.params import Acceptance
from paceline.sampling.tree_draw import BranchRow, Children, draw_children
from paceline.tree_shape import ROOT


@dataclass(frozen=True, slots=True)
class Step:
    """What a pass does for one session's tree: the nodes (or the `ROOT`) whose rows it gives."""

    request: ProposeRequest
    nodes: Sequence[int]


class TreeDrafting:
    """Trees by session. A tree's nodes stay cached until it is known which of them came true."""

    def __init__(self, config: TreeConfig, runner: Runner, *, knows_all_ids: bool = True) -> None:
        self._knows_all_ids = knows_all_ids
        self._max_children = config.max_children
        self._doubt = config.doubt
        self._runner = runner
        self._growths: dict[SessionKey, TreeGrowth] = {}

    @property
    def is_on(self) -> bool:
        """Whether any session's drafts branch."""
        return self._max_children > 1

    def wants(self, request: ProposeRequest) -> bool:
        """Whether a tree is to be drafted; else a token after the other is.

        Block verification judges chains, and one node branches nowhere.
        """
        params = request.opening.sampling
        is_judged_by_block = params.acceptance is Acceptance.BLOCK and not params.is_deterministic
        return self.is_on and request.limit > 1 and not is_judged_by_block

    def goes_on(self, request: ProposeRequest) -> bool:
        """Whether the session's tree grows for this very sequence, epoch and room."""
        growth = self._growths.get(request.key)
        return (
            growth is not None
            and bool(growth.frontier())
            and not growth.is_complete
            and growth.root == len(request.token_ids)
            and growth.epoch == request.epoch
            and growth.max_nodes <= request.limit
        )

    def settle(self, key: SessionKey, table: PageTable, token_ids: Sequence[int]) -> None:
        """Give up a tree for the sequence that has become of it: what is cached of that is kept."""
        growth = self._growths.pop(key, None)
        if growth is not None:
            self._runner.keep(table, growth.root, growth.path_of(token_ids[growth.root :]))

    def outlasts(self, key: SessionKey, length: int) -> bool:
        """Whether a rollback to `length` leaves the session's tree to be settled later."""
        growth = self._growths.get(key)
        if growth is not None and growth.root > length:
            del self._growths[key]
        return key in self._growths

    def frontier(self, key: SessionKey) -> list[int]:
        """The nodes that a session feeds next."""
        growth = self._growths.get(key)
        return [] if growth is None else growth.frontier()

    def chunk(self, key: SessionKey, table: PageTable, nodes: Sequence[int]) -> Chunk:
        """What the runner is given to feed some nodes."""
        growth = self._growths[key]
        # a pass that succeeded may have come to nothing
        table.truncate(growth.root + len(growth.fed))
        token_ids = [growth.nodes[node].draw.token_id for node in nodes]
        return Chunk(table, token_ids, len(nodes), growth.shape_with(nodes))

    def take(
        self,
        logits: Tensor,  # [sum of the steps' nodes, V]
        steps: Sequence[Step],
        matchers: Mapping[SessionKey, GrammarMatcher],
    ) -> list[Proposal]:
        """Let the trees grow by what a pass said of their nodes; those that are ready go out."""
        rows: list[BranchRow] = []
        for step in steps:
            rows += self._rows(step, matchers.get(step.request.key))
        drawn = draw_children(logits, rows)
        proposals: list[Proposal] = []
        for step in steps:
            own, drawn = drawn[: len(step.nodes)], drawn[len(step.nodes) :]
            proposals.append(self._grow(step, own))
        return proposals

    def _rows(self, step: Step, matcher: GrammarMatcher | None) -> list[BranchRow]:
        request, opening = step.request, step.request.opening
        growth = self._growth(request)
        rows: list[BranchRow] = []
        place = growth.place(self._max_children)
        for node in step.nodes:
            path = growth.path(node)
            mask, max_children = None, self._max_children
            if matcher is not None:
                mask = matcher.mask_after(path)
                if mask is None:  # nothing may follow
                    max_children = 0
            context = request.context(path, mask)
            rows.append(
                BranchRow(
                    context, growth.epoch, opening.draft_top_k, max_children, place, self._doubt
                )
            )
            place += self._max_children
        return rows

    def _growth(self, request: ProposeRequest) -> TreeGrowth:
        """The session's tree; a new one where it has none."""
        growth = self._growths.get(request.key)
        if growth is None:
            root, opening = len(request.token_ids), request.opening
            growth = self._growths[request.key] = TreeGrowth(
                root=root,
                epoch=request.epoch,
                max_nodes=request.limit,
                num_slots=min(opening.max_length, self._runner.context_length) - root,
                end_ids=end_ids(opening),
            )
        return growth

    def _grow(self, step: Step, drawn: Sequence[Children | PacelineError]) -> Proposal:
        growth = self._growths[step.request.key]
        growth.fed += [node for node in step.nodes if node != ROOT]
        for node, children in zip(step.nodes, drawn, strict=True):
            if not isinstance(children, PacelineError):
                growth.expand(node, children)
            elif isinstance(children, InvalidArgumentError) and not self._knows_all_ids:
                growth.expand(node, Children([], []))  # none of those that it knows may come here
            else:
                return Proposal(error=children)
        if growth.frontier():
            return Proposal(is_pending=True)
        draws, shape = growth.tree()
        growth.is_complete = True
        return Proposal(draws, tree=None if shape.is_chain else shape)
