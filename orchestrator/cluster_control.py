"""How another program speaks to a running deployment: a named actor holds what is wanted of it.

`paceline scale` puts the wish there and waits; the program that supervises fetches it, carries it
out, and puts the answer there. The actor ends with that program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster_actors import Failure
from orchestrator.cluster_members import CONTROL_ACTOR, Role
from orchestrator.cluster_ray import address, join
from paceline.errors import DeadlineExceededError, PacelineError, StartupError, UnavailableError

logger = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0

Wish = Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a wish: what was done, in words, or why nothing was."""

    text: str
    replicas: Wish
    """How many of each role are wanted now."""


class DesiredState:
    """The actor. It keeps wishes in the order in which they came."""

    def __init__(self, replicas: Wish) -> None:
        self._replicas = dict(replicas)
        self._wishes: asyncio.Queue[tuple[int, Wish]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[Answer | Failure]] = {}
        self._next = 0

    async def replicas(self) -> Wish:
        """How many of each role are wanted, as last carried out."""
        return self._replicas

    async def ask(self, wish: Wish) -> Answer | Failure:
        """Wish for so many replicas of some roles; returns when it is carried out or refused."""
        self._next += 1
        number = self._next
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._wishes.put_nowait((number, wish))
        try:
            outcome: Answer | Failure = await answer
            return outcome
        finally:
            del self._answers[number]

    async def take(self) -> tuple[int, Wish]:
        """The next wish and its number; waits for one."""
        return await self._wishes.get()

    async def answer(self, number: int, answer: Answer | Failure) -> None:
        """What came of a wish."""
        if isinstance(answer, Answer):
            self._replicas = dict(answer.replicas)
        asked = self._answers.get(number)
        if asked is not None and not asked.done():
            asked.set_result(answer)


class Control:
    """The supervising program's end of the actor."""

    def __init__(
        self, namespace: str, replicas: Callable[[], Wish], scale: Callable[[Wish], Awaitable[str]]
    ) -> None:
        self._namespace = namespace
        self._replicas = replicas
        self._scale = scale
        self._actor: Any = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take wishes from now on."""
        self._task = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._end_actor()

    def _end_actor(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(actor)

    async def _serve(self) -> None:
        while True:
            try:
                self._actor = self._make()
                while True:
                    number, wish = await self._actor.take.remote()
                    await self._actor.answer.remote(number, await self._carry_out(wish))
            except (RayError, ValueError) as error:
                # its process died, it could not be reached, or its name is not free yet
                logger.debug("the control actor is made anew: %s", error)
            except Exception:
                logger.exception("the control actor is made anew")
            self._end_actor()  # who asks one that nobody serves would wait for ever
            await asyncio.sleep(RESTART_DELAY_S)

    def _make(self) -> Any:
        """On this machine, which it is of no use without."""
        here = ray.get_runtime_context().get_node_id()
        options = ray.remote(DesiredState).options(
            name=CONTROL_ACTOR,
            namespace=self._namespace,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
            max_restarts=0,
        )
        return options.remote(self._replicas())

    async def _carry_out(self, wish: Wish) -> Answer | Failure:
        try:
            return Answer(await self._scale(wish), self._replicas())
        except Exception as error:
            return Failure.of(error)


def ask(wish: Wish, *, ray_address: str | None, namespace: str, timeout_s: float | None) -> Answer:
    """Have a running deployment carry out a wish, from another program; blocks.

    Raises the error with which it was refused, `StartupError` if there is no such deployment,
    `DeadlineExceededError` if it takes longer than `timeout_s` (it is carried out all the same),
    and `UnavailableError` if the deployment ends meanwhile.
    """
    connection = join(ray_address, namespace=namespace)
    try:
        try:
            actor = ray.get_actor(CONTROL_ACTOR, namespace=namespace)
        except ValueError as error:
            raise StartupError(
                f"no deployment runs in namespace {namespace!r} of the Ray cluster at {address()} "
                "(cluster.namespace, --ray-address)"
            ) from error
        try:
            answer = ray.get(actor.ask.remote(dict(wish)), timeout=timeout_s)
        except GetTimeoutError as error:
            raise DeadlineExceededError(
                f"not done within {timeout_s:g} s (--timeout); it goes on"
            ) from error
        except RayError as error:
            raise UnavailableError("the deployment has ended") from error
    finally:
        connection.close()
    if isinstance(answer, Failure):
        raise answer.error()
    if not isinstance(answer, Answer):
        raise PacelineError(f"an unknown answer: {answer!r}")
    return answer
