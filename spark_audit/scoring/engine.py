from __future__ import annotations
import numpy as np
import torch
from spark_audit.table import COLUMNS


def plain_columns(loaded, model, items):
    n = max(len(i.ids) for i in items)
    ids = torch.zeros(len(items), n, dtype=torch.long)
    mask = torch.zeros(len(items), n, dtype=torch.long)
    for r, i in enumerate(items):
        ids[r, : len(i.ids)] = torch.from_numpy(i.ids.astype(np.int64))
        mask[r, : len(i.ids)] = 1
    usable = torch.from_numpy(loaded.usable)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
    logits[..., ~usable] = -torch.inf
    out = []
    for r, i in enumerate(items):
        L = len(i.ids)
        z = logits[r, : L - 1]
        y = ids[r, 1:L, None]
        lp = torch.log_softmax(z, -1)
        p = lp.exp()
        t = z.gather(1, y)
        lp0 = torch.where(usable, lp, 0.0)
        mu = (p * lp0).sum(-1)
        sd = (p * (lp0 - mu[:, None]) ** 2).sum(-1).clamp_min(0).sqrt()
        other = z.scatter(1, y, -torch.inf).amax(-1)
        top = z.topk(min(40, z.shape[1]), -1).values.logsumexp(-1) - z.logsumexp(-1)
        cols = {
            "nll": -lp.gather(1, y)[:, 0],
            "rank_lo": 1 + (z > t).sum(-1),
            "ties": (z == t).sum(-1) - 1,
            "mean_logp": mu,
            "sd_logp": sd,
            "top1_margin": t[:, 0] - other,
            "top40_logp": top,
        }
        out.append({k: v.numpy().astype(COLUMNS[k]) for k, v in cols.items()})
    return out


def run_plain(loaded, items, keys, *, store, batch_size, shard, progress):
    todo = [
        i
        for i in items
        if keys[i.key] not in store and int(keys[i.key], 16) % shard[1] == shard[0]
    ]
    todo.sort(key=lambda i: -len(i.ids))
    total = sum(len(i.ids) for i in items)
    done = total - sum(len(i.ids) for i in todo)
    size = 8 if batch_size == "auto" else int(batch_size)
    with loaded.active() as model:
        for a in range(0, len(todo), size):
            part = todo[a : a + size]
            for i, cols in zip(part, plain_columns(loaded, model, part)):
                store.add(keys[i.key], i.positions[1:], cols)
            done += sum(len(i.ids) for i in part)
            if progress:
                progress(done, total)
    store.flush()
    return []
