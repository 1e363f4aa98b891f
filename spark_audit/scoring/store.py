from __future__ import annotations
import hashlib, os, secrets
from pathlib import Path
import numpy as np
import pyarrow as pa, pyarrow.parquet as pq
from spark_audit.table import COLUMNS, TokenTable, write_parquet


class Store:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        salt = self.folder / "salt"
        if not salt.exists():
            salt.write_bytes(secrets.token_bytes(32))
        self.salt = salt.read_bytes()
        self.pending = []
        self.have = {}
        self.load()

    def load(self):
        for f in self.folder.glob("*.parquet"):
            t = pq.read_table(f).to_pylist()
            for r in t:
                self.have[r["key"]] = r

    def keys(self, loaded, items, kind):
        um = hashlib.sha256(np.packbits(loaded.usable).tobytes()).hexdigest()
        return {
            i.key: hashlib.sha256(
                repr((1, loaded.model_id, kind, um)).encode()
                + self.salt
                + i.ids.tobytes()
                + i.positions.tobytes()
            ).hexdigest()
            for i in items
        }

    def __contains__(self, key):
        return key in self.have

    def add(self, key, positions, cols):
        r = {
            "key": key,
            "position": positions.tolist(),
            **{k: v.tolist() for k, v in cols.items()},
        }
        self.have[key] = r
        self.pending.append(r)

    def flush(self):
        if self.pending:
            write_parquet(
                pa.Table.from_pylist(self.pending),
                self.folder / f"{secrets.token_hex(8)}.parquet",
            )
            self.pending = []

    def gather(self, keys, *, kind):
        self.load()
        return TokenTable.from_items(
            [
                (
                    k,
                    np.array(self.have[s]["position"], np.int32),
                    {c: np.array(self.have[s][c], d) for c, d in COLUMNS.items()},
                )
                for k, s in keys.items()
                if s in self.have
            ]
        )
