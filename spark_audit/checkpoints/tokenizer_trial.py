"""Try a tokenizer.json in a separate process before it is loaded here.

Some files make the Rust library end the whole process, take all memory, or print text
that no error handling can stop. The separate process shows whether that happens.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from spark_audit.files import sha256_file

_TRIAL_BYTES = 1 << 31
"""Memory of the separate process."""
_TRIAL_SECONDS = 20
"""Seconds after which the separate process is ended."""
# Isolated (-I): neither the working directory nor environment variables add code.
_TRIAL = """
import contextlib, resource, sys
sys.path.append(sys.argv[2])
from tokenizers import Tokenizer
with contextlib.suppress(Exception):
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]),) * 2)
with contextlib.suppress(Exception):
    tokenizer = Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    every_letter = "".join(map(chr, [*range(1, 600), *range(0x2190, 0x2200)]))
    # What a pattern may repeat: words, and one letter many times.
    prose = "the quick brown fox jumps over the lazy dog and waits for an answer "
    mixed = "Mr. O'Neil paid $1,234.50 (20%) on 2004-10-12; call +1 212 555 0147! "
    runs = ("a", "A", "1", " ", "\\n", "-", "aA", "a1", "a ", "a, ", "\\u4e16")
    texts = ["a", " ", every_letter, prose * 20, prose.upper() * 20, mixed * 20]
    texts += [run * 200 for run in runs]
    for text in texts:
        tokenizer.decode(tokenizer.encode(text + "\\u4e16\\U0001f600 </s>").ids)
"""
_passed: set[str] = set()
"""Hashes of tokenizer files that have passed."""


def failure_in_trial(path: Path) -> str | None:
    """Return why a process that loads tokenizer.json does not end properly.

    Returns
    -------
    str or None
        ``None`` if it ends properly, or with an ordinary error, which will occur again
        when the file is loaded here.
    """
    import tokenizers

    digest = sha256_file(path)
    # A program that embeds Python has no executable to start.
    if digest in _passed or not sys.executable:
        return None

    # The separate process finds the library in the same place.
    packages = str(Path(tokenizers.__file__).parents[1])
    command = [sys.executable, "-I", "-c", _TRIAL]
    try:
        trial = subprocess.run(
            [*command, str(path), packages, str(_TRIAL_BYTES)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {_TRIAL_SECONDS} s"

    if trial.returncode:
        output = trial.stderr.decode(errors="replace")
        panic = re.search(r"PanicException: (.*)", output)
        return panic[1] if panic else "it ends the process that loads it"

    _passed.add(digest)
    return None
