"""`paceline up` with fakes: `python -m support.fake_up CONFIG [ROLE=MODULE:FUNCTION …]`.

CONFIG is JSON, or the path of a file with it, which is read again on SIGHUP.
"""

import json
import sys
from functools import partial
from pathlib import Path

from support.fake_services import FAKES

from orchestrator.cluster_main import up
from orchestrator.cluster_members import Role
from paceline.config import load_config, parse_config

if __name__ == "__main__":
    entry_points = dict(FAKES)
    for argument in sys.argv[2:]:
        role, _, entry_point = argument.partition("=")
        entry_points[Role(role)] = entry_point
    if sys.argv[1].startswith("{"):
        config, reread = parse_config(json.loads(sys.argv[1]), source="argument"), None
    else:
        reread = partial(load_config, Path(sys.argv[1]))
        config = reread()
    raise SystemExit(up(config, reread=reread, entry_points=entry_points))
