"""`paceline up` with fake services as a process of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

WAIT_S = 60.0


class Up:
    """A running `paceline up`, leader of its own process group, as a terminal would start it."""

    def __init__(
        self, config: dict[str, Any] | Path, *entry_points: str, **environment: str
    ) -> None:
        given = str(config) if isinstance(config, Path) else json.dumps(config)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.fake_up", given, *entry_points],
            env={**os.environ, "COLUMNS": "200", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._incoming: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._incoming.put(line.rstrip("\n"))
        self._incoming.put(None)

    def line_with(self, text: str) -> str:
        """The next line of its output with the text."""
        deadline = time.monotonic() + WAIT_S
        while True:
            line = self._incoming.get(timeout=max(0.0, deadline - time.monotonic()))
            if line is None:
                raise AssertionError(f"ended without {text!r}: {self.lines} {self.errors()}")
            self.lines.append(line)
            if text in line:
                return line

    def errors(self) -> str:
        """What it wrote to standard error; waits for its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self) -> int:
        """Waits for its end; returns its exit code."""
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def free_ports(config: dict[str, Any]) -> dict[str, Any]:
    listen = {"listen": "127.0.0.1:0"}
    return {"verifier": listen, "drafter": listen, "orchestrator": listen, **config}
