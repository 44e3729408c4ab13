"""Where stop strings end a text that comes in chunks; nothing of a match is let through."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from paceline.errors import InvalidArgumentError

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
"""Characters of one stop string."""
MAX_STOP_CHARACTERS = 8192
"""Of all together."""


def check_stops(stops: Sequence[str]) -> None:
    """Raise `InvalidArgumentError` naming `stop` for an empty, too long or one too many string."""
    if len(stops) > MAX_STOPS:
        raise InvalidArgumentError("stop", f"{len(stops)} strings; at most {MAX_STOPS}")
    for index, stop in enumerate(stops):
        if not stop:
            raise InvalidArgumentError("stop", f"string {index} is empty")
        if len(stop) > MAX_STOP_LENGTH:
            problem = f"string {index} has {len(stop)} characters; at most {MAX_STOP_LENGTH}"
            raise InvalidArgumentError("stop", problem)
    total = sum(map(len, stops))
    if total > MAX_STOP_CHARACTERS:
        raise InvalidArgumentError("stop", f"{total} characters; at most {MAX_STOP_CHARACTERS}")


class StopStrings:
    """Finds the first stop string in a text, whatever the chunks.

    The match that starts leftmost wins; of those that start together the shortest does, which is
    the first to be complete. Held back is only a suffix that may begin a match that wins. `include`
    lets the winning match itself through. Aho and Corasick's automaton: time linear in the text.
    """

    def __init__(self, automaton: StopAutomaton, *, include: bool = False) -> None:
        self._automaton = automaton
        self._include = include
        self._state = 0
        self._length = 0
        """Characters taken."""
        self._sent = 0
        self._held = ""
        self._match: tuple[int, int] | None = None
        """The best complete match so far, from and to which character."""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take a chunk; return what may be sent now, and whether the text has ended."""
        if self._stopped:
            return "", True
        self._held += text
        for char in text:
            self._state = self._automaton.step(self._state, char)
            self._length += 1
            self._consider_match()
            # An earlier match may still be under way: it would win.
            if self._match is not None and self._candidate_start >= self._match[0]:
                return self._stop()
        if self._match is None:
            return self._take(self._candidate_start), False
        return self._take(min(self._match[0], self._candidate_start)), False

    def flush(self) -> tuple[str, bool]:
        """End of the text: what was held back, up to a complete match if there is one."""
        if self._stopped:
            return "", True
        if self._match is not None:
            return self._stop()
        return self._take(self._length), False

    @property
    def _candidate_start(self) -> int:
        """Where the longest suffix that begins a stop string starts."""
        return self._length - self._automaton.depth[self._state]

    def _consider_match(self) -> None:
        length = self._automaton.longest_match[self._state]
        start = self._length - length
        if length and (self._match is None or start < self._match[0]):
            self._match = (start, self._length)

    def _stop(self) -> tuple[str, bool]:
        assert self._match is not None
        self._stopped = True
        return self._take(self._match[1] if self._include else self._match[0]), True

    def _take(self, end: int) -> str:
        """Release held characters up to character `end` of the text."""
        count = end - self._sent
        released, self._held = self._held[:count], self._held[count:]
        self._sent = end
        return released


class StopAutomaton:
    """Aho and Corasick's, of some stop strings; answers share it.

    A state is the longest suffix of the text that begins some string.

    `depth[state]` is that suffix's length; `longest_match[state]` the length of the longest string
    that ends here, 0 for none.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises what `check_stops` does."""
        check_stops(stops)
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]
        """By state: the longest proper suffix that is a state too."""
        self.depth = [0]
        self.longest_match = [0]
        for stop in stops:
            self._add(stop)
        self._link()

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self.depth.append(self.depth[state] + 1)
                self.longest_match.append(0)
            state = self._next[state][char]
        self.longest_match[state] = len(string)

    def _link(self) -> None:
        """Link each state to its longest proper suffix, nearest to the root first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._shorter[child] = self.step(self._shorter[state], char)
                shorter_match = self.longest_match[self._shorter[child]]
                self.longest_match[child] = max(self.longest_match[child], shorter_match)
                queue.append(child)
