"""The file of one package's results; `../side_by_side.rs` reads it.

    u32   length of the header
    JSON  {"package", "versions", "ops": [{"op", "width", "params", "values", "drawn", "rounded"}]}
    then for each op, for each of the 1,000 rows, little-endian:
    u32   how many tokens are kept (finite)
    u32   upper half of the sum of mix(id) over them
    and if "values":
    6 f32 the logits at the probed ranks
    f64   the sum of all kept logits
    and if "drawn", which the record is the step after:
    u32   the token that the package drew

`rounded` lists the rows in which the package's own f32 arithmetic keeps
another set than f64 does or is off by more than 1e-5, and how many tokens it
keeps: for those the record is what f64 gives.
"""

import json
import struct
from pathlib import Path

import numpy as np

import rows

# How far from a boundary, in probability, in logits or in deviations, and how
# far off in relation, f32 arithmetic may be before it is called a difference.
ROUNDING = 2e-3
HERE = Path(__file__).parent


def distance(a, b) -> float:
    """Largest difference in relation to max(1, |b|)."""
    same = a == b
    a, b = a[~same], b[~same]
    return np.max(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0.0)


class Fixture:
    def __init__(self, package: str, versions: dict[str, str]):
        self.package, self.versions = package, versions
        self.ops, self.records = [], []

    def op(self, name: str, width: int, params: list, values: bool, run, exact, drawn=False):
        """Records one op over all rows.

        `run(row, params)` gives the package's logits, `exact(row, params)` an
        independent f64 computation of logits and margins: how far each token
        is from being dropped or kept. They may differ for rounding only. If
        `drawn`, `run` gives a token too, and `exact` is given it.
        """
        rounded, margin, off, blob = [], 0.0, 0.0, b""
        for row in range(rows.ROWS):
            chosen = rows.chosen(row, params)
            if drawn:
                theirs, token = run(row, chosen)
                ours, margins = exact(row, chosen, token)
            else:
                theirs, token = run(row, chosen), None
                ours, margins = exact(row, chosen)
            theirs = np.asarray(theirs, np.float64)
            where = f"{name} V={width} row {row} {chosen}"
            assert not np.isnan(theirs).any(), f"{where}: NaN"
            differ = np.isfinite(theirs) != np.isfinite(ours)
            if differ.any():
                here = np.abs(margins[differ]).max()
                assert here < ROUNDING, f"{where}: {np.flatnonzero(differ)} by {here}"
                margin = max(margin, here)
            elif (here := distance(theirs, ours)) > 1e-5:
                assert here < ROUNDING, f"{where}: off by {here}"
                off = max(off, here)
            else:
                blob += record(theirs, row, width, values, token)
                continue
            rounded.append([row, int(np.isfinite(theirs).sum())])
            blob += record(ours, row, width, values, token)
        print(
            f"{name} V={width}: {len(rounded)} rounded, margin {margin:.1e}, off {off:.1e}",
            flush=True,
        )
        self.ops.append(
            {"op": name, "width": width, "params": params, "values": values, "drawn": drawn}
            | {"rounded": rounded}
        )
        self.records.append(blob)

    def write(self):
        header = json.dumps(
            {"package": self.package, "versions": self.versions, "ops": self.ops},
            separators=(",", ":"),
        ).encode()
        path = HERE / f"{self.package}.bin"
        path.write_bytes(struct.pack("<I", len(header)) + header + b"".join(self.records))


def record(logits: np.ndarray, row: int, width: int, values: bool, token: int | None) -> bytes:
    kept = np.flatnonzero(np.isfinite(logits))
    digest = int(rows.mix(kept).sum(dtype=np.uint64)) >> 32
    packed = struct.pack("<II", len(kept), digest)
    if values:
        probes = logits[rows.ids_by_rank(row, width)[list(rows.PROBE_RANKS)]]
        packed += struct.pack("<6fd", *probes, logits[kept].sum())
    if token is not None:
        packed += struct.pack("<I", token)
    return packed
