"""Reads documents of ATIF, a line each, with Harbor's own models, and writes what they make of them."""

import json
import sys

from harbor.models.trajectories import Trajectory
from pydantic import ValidationError

for line in sys.stdin:
    try:
        read = {"document": Trajectory.model_validate_json(line).to_json_dict(exclude_none=False)}
    except ValidationError as error:
        read = {"error": str(error)}
    sys.stdout.write(json.dumps(read) + "\n")
    sys.stdout.flush()
