"""`paceline up` with fakes: `python -m support.fake_up CONFIG_JSON [ROLE=MODULE:FUNCTION …]`."""

import json
import sys

from support.fake_services import FAKES

from orchestrator.cluster_main import up
from orchestrator.cluster_members import Role
from paceline.config import parse_config

if __name__ == "__main__":
    entry_points = dict(FAKES)
    for argument in sys.argv[2:]:
        role, _, entry_point = argument.partition("=")
        entry_points[Role(role)] = entry_point
    config = parse_config(json.loads(sys.argv[1]), source="argument")
    raise SystemExit(up(config, entry_points=entry_points))
