"""Who knows whom in a deployment: the workers' addresses, and telling the orchestrators of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from orchestrator.cluster_keeper import Keeper
from orchestrator.cluster_members import Member, Role
from orchestrator.worker_set import WorkerSet
from paceline.config import Config


class Directory:
    """The addresses of the members as their keepers know them at the time of a question."""

    def __init__(self, config: Config, keepers: Callable[[], Sequence[Keeper]]) -> None:
        self._config = config
        self._keepers = keepers
        self._version = 0

    def addresses(self, role: Role) -> tuple[str, ...]:
        """Where a role's members are, those that leave excepted."""
        return tuple(
            keeper.placed.address
            for keeper in self._keepers()
            if keeper.member.role is role and keeper.placed is not None and not keeper.is_leaving
        )

    def config_for(self, member: Member) -> Config:
        """The configuration that a member starts with: an orchestrator's names the workers."""
        if member.role is not Role.ORCHESTRATOR:
            return self._config
        workers, section = self._worker_set(), self._config.orchestrator
        section = section.model_copy(
            update={
                "drafters": workers.drafters,
                "verifiers": workers.verifiers,
                "require_drafter": section.require_drafter and bool(workers.drafters),
            }
        )
        return self._config.model_copy(update={"orchestrator": section})

    async def announce(self, grace_s: float = 0.0) -> None:
        """Tell every orchestrator which workers there are; returns when the others are drained."""
        self._version += 1
        workers = self._worker_set()
        await asyncio.gather(
            *(
                keeper.service.update_workers(workers, grace_s=grace_s)
                for keeper in self._keepers()
                if keeper.member.role is Role.ORCHESTRATOR and keeper.placed is not None
            )
        )

    def _worker_set(self) -> WorkerSet:
        """The workers, those that the file names first."""
        section = self._config.orchestrator
        return WorkerSet(
            version=self._version,
            verifiers=section.verifiers + self.addresses(Role.VERIFIER),
            drafters=(section.drafters or ()) + self.addresses(Role.DRAFTER),
        )
