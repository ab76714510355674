"""A floor: tokens whose logit lies more than `distance` below the best one are
banned."""

import json

from wit_world.imports import edits, logits


def too_low(row, distance):
    """The ids that are too far below the best logit."""
    floor = max(row) - distance
    return [id for id, logit in enumerate(row) if logit < floor]


class Sequence:
    def __init__(self, distance):
        # None: off.
        self.distance = distance

    @classmethod
    def open(cls, info):
        return cls(json.loads(info.params).get("distance"))

    def process(self, accepted):
        if self.distance is not None:
            edits.deny(too_low(logits.row(), self.distance))
        # No new row: the edits say what changes.
        return None
