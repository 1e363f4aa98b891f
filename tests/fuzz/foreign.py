"""Families of mutants of what comes from elsewhere: GGUF, servers, TOML, headers."""

import json
import struct
from typing import Any

from fuzz.families import Commands, Silent, family
from fuzz.mutations import STEERING, Rng, mutate, mutate_bytes, one, written
from fuzz.scene import Scene

SIZES = (0, 1, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


@family(4)
def gguf(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """A GGUF file: a count, length or offset in its header, or any of its bytes."""
    raw = scene.gguf.read_bytes()
    if rng.random() < 0.3:
        raw, mutation = mutate_bytes(raw, rng)
    else:
        changed = bytearray(raw)
        mutation = ""
        for _ in range(1 + int(rng.random() < 0.3)):
            code = one(rng, ("<Q", "<Q", "<I"))
            # The header's own fields, its keys, or what is said of its tensors.
            offset = int(rng.integers(4, one(rng, (24, 400, scene.gguf_header))))
            size = one(rng, SIZES) & ((1 << 8 * struct.calcsize(code)) - 1)
            struct.pack_into(code, changed, offset, size)
            mutation += f" {size} at byte {offset}"
        raw = bytes(changed)
    said.append(mutation)
    path = scene.file("m.gguf", raw)
    seen = yield ["inspect", path, "--base", scene.base]
    if seen == 0 and (yield ["@open", path, scene.base]) == 0:
        if mutation.startswith(("cut", "empty", "zeros", "list", "null", "deep")):
            raise Silent("a file without its end was opened")


@family(4)
def header(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """The header of a safetensors file, written anew over the same tensors."""
    file_given, name = one(
        rng,
        (
            (scene.base, "model.safetensors"),
            (scene.lora, "adapter_model.safetensors"),
        ),
    )
    folder = scene.copy(file_given)
    path = folder / name
    raw = path.read_bytes()
    (long,) = struct.unpack_from("<Q", raw)
    content, mutation = mutate(json.loads(raw[8 : 8 + long]), rng)
    new = written(content, line=True)
    length_told = len(new) if rng.random() < 0.8 else one(rng, SIZES)
    said.append(f"{name}: {mutation}; of {length_told} bytes")
    path.write_bytes(struct.pack("<Q", length_told) + new + raw[8 + long :])
    base = "" if file_given == scene.base else scene.base
    seen = yield ["inspect", folder, *(["--base", base] if base else [])]
    if seen == 0:
        yield ["@open", folder, base]


@family(4)
def peft(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """An adapter's configuration of another type, with fields that PEFT knows."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING

    folder = scene.copy(scene.lora)
    path = folder / "adapter_config.json"
    content = json.loads(path.read_bytes())
    kinds = {str(k.value): v for k, v in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    fields = sorted(kinds["LORA"].__dataclass_fields__)
    if rng.random() < 0.4:
        peft_type = one(rng, sorted(kinds))
        fields = sorted(kinds[peft_type].__dataclass_fields__)
        content = {k: v for k, v in content.items() if k in fields}
        content |= {"peft_type": peft_type, "task_type": "CAUSAL_LM"}
        said.append(peft_type)
    values = (
        *(True, 1, -1, 0, "all", "all-linear", "(a+)+$", "gaussian", "../x", STEERING),
        *({"q_proj": 10**9}, {"(x+x+)+y": 1}, ["lm_head"], ["embed_tokens"], [""], [0]),
        *({"auto_map": {}}, "https://h/x", "hf:a/b", [[0, 10**6]], {"loftq_bits": 4}),
    )
    for _ in range(1 + int(rng.integers(3))):
        name = one(rng, fields)
        value = one(rng, values)
        content[name] = value
        said.append(f"{name} is {str(value)[:30]!a}")
    path.write_bytes(written(content))
    seen = yield ["inspect", folder, "--base", scene.base]
    if seen == 0:
        yield ["@open", folder, scene.base]


@family(5)
def server(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """What a server answers where it is asked for scores."""
    body: Any = {
        "choices": [{"text": "", "logprobs": {"token_logprobs": [None, -1.0, -2.5]}}],
        "usage": {"prompt_tokens": 3},
    }
    reply_kind = one(rng, ("json", "json", "bytes", "head"))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    if reply_kind == "json":
        body, mutation = mutate(body, rng)
        raw = head + written(body, line=True)
    elif reply_kind == "bytes":
        raw, mutation = mutate_bytes(head + written(body), rng)
    else:
        status = one(rng, (100, 200, 204, 301, 307, 400, 401, 413, 422, 503, 999, -1))
        lines = (
            *(b"Content-Length: -1", b"Content-Length: 99999999999999"),
            *(b"Transfer-Encoding: chunked", b"X: " + b"a" * 70_000, b": ", b"\x00"),
            *(b"Location: file:///etc/passwd", b"Content-Encoding: gzip"),
        )
        line = one(rng, lines)
        mutation = ""
        reason = one(
            rng, (b"OK", STEERING.encode("utf-8", "replace"), b"", b"a" * 9999)
        )
        first = b"HTTP/1.1 %d %b\r\n" % (status, reason)
        raw = first + line + b"\r\n\r\n" + written(body)
        mutation = f"{status} {line[:30]!r}"
    said.append(f"{reply_kind}: {mutation}")
    path = scene.file("answer", raw)
    yield ["@served", path]
