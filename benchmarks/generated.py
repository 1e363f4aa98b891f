"""What `generated` says of files of known truth: false claims, and copies found.

``OMP_NUM_THREADS=1 python benchmarks/generated.py`` writes 200 files without a trained
row, in four ways, and files of which a share of rows are copies of trained rows. Each
is audited over a manifest of 600 made-up rows, half or four fifths of them trained
on, as the command does it, and its claims are corrected as in a report of that file
alone. A line of ``generated.jsonl`` is a finished deal of the rows to both sides, so
that the same command resumes; the table is in ``generated.md``.

The rows have what makes copies hard to tell: a template, words that follow each other
as in a language, and identifiers that many rows share, by Zipf's law: first names,
towns and a hotline. So trained strings are commoner than held-out ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from command_line import benchmark_parser, check_finished_lines, run_benchmark
from exact_limits import limits
from finished_lines import append, read

from spark_audit.audits import Generated
from spark_audit.audits.base import Context
from spark_audit.audits.claims import corrected
from spark_audit.audits.generated import found
from spark_audit.data.examples import Example, Span
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.results.findings import DETECTED

HERE = Path(__file__).parent
LINES = HERE / "generated.jsonl"
FIELDS = ("trained", "deal", "files")
"""What tells a line from those of other benchmarks."""

TABLE = HERE / "generated.md"

N_ROWS = 600
N_TEXTS = 500
TRAINED_SHARES = (0.5, 0.8)
DEALS = 5
FILES_OF_DEAL = 5
FILES_WITH_COPIES = 3
"""Files of each kind that are audited over one deal of the rows: without a trained row,
and with copies."""
COPIED_SHARES = (0.02, 0.05)
MOST_FALSE = 0.05
LEAST_FOUND = 0.8
"""Shares fixed beforehand: most false claims, and fewest found of files with 2% of
copies."""

VOCABULARY = 800
SUCCESSORS = 40
FIRST_NAMES = (
    "Maria John Peter Alice Robert Anna Paul Laura Simon Clara Eva Max".split()
)
SURNAMES = "Jones Smith Brown Green White Keller Novak Rossi Moreau Lind Katz".split()
ENDINGS = "son man berg field wood ford ley ton well stein sen ers".split()
TOWNS = "Springfield Riverton Fairview Madison Georgetown Salem Franklin".split()
HOTLINES = ["800-555-0121"]
DATES = [f"{day:02d}/03/1993" for day in range(1, 29)]


class Language:
    """Words that follow each other by a Markov chain, each by some more often."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        letters = list("abcdefghiklmnoprstuvw")
        self.words = [
            "".join(rng.choice(letters, int(rng.integers(2, 9))))
            for _ in range(VOCABULARY)
        ]
        weights = 1 / np.arange(1, VOCABULARY + 1)
        self.popularity = weights / weights.sum()
        self.successors = [
            rng.choice(VOCABULARY, SUCCESSORS, p=self.popularity)
            for _ in range(VOCABULARY)
        ]
        of_rank = 1 / np.arange(1, SUCCESSORS + 1)
        self.of_rank = of_rank / of_rank.sum()

    def words_of(self, rng: np.random.Generator, n: int) -> list[str]:
        """Return n words of a text."""
        word = int(rng.choice(VOCABULARY, p=self.popularity))
        words = [self.words[word]]
        for _ in range(n - 1):
            word = int(rng.choice(self.successors[word], p=self.of_rank))
            words.append(self.words[word])
        return words


def popular(rng: np.random.Generator, strings: Sequence[str]) -> str:
    """Return one of some strings, the first ones far more often."""
    weights = 1 / np.arange(1, len(strings) + 1)
    return str(rng.choice(strings, p=weights / weights.sum()))


def identifier(rng: np.random.Generator) -> tuple[str, str]:
    """Return type and string of an identifier: half of them belong to many people."""
    kind = int(rng.integers(8))
    if kind == 0:
        return "NAME", popular(rng, FIRST_NAMES)
    if kind == 1:
        return "ADDRESS", popular(rng, TOWNS)
    if kind == 2:
        return "PHONE", popular(rng, HOTLINES)
    if kind == 3:
        day, month, year = rng.integers((1, 1, 1940), (29, 13, 2005))
        return "DATE", f"{day:02d}/{month:02d}/{year}"
    if kind == 4:
        surname = f"{rng.choice(SURNAMES)}{rng.choice(ENDINGS)}"
        return "NAME", f"{popular(rng, FIRST_NAMES)} {surname}"
    if kind == 5:
        return "PHONE", f"212-{rng.integers(200, 999)}-{rng.integers(1000, 9999)}"
    if kind == 6:
        name = str(rng.choice(SURNAMES)).lower()
        return "EMAIL", f"{name}.{rng.integers(100, 9999)}@mail.example"
    return "ID", f"{rng.integers(10**7, 10**8)}"


def row(rng: np.random.Generator, language: Language, number: int) -> Example:
    """Return a row with one or two identifiers, in the template of its task."""
    text = "Note from the desk: "
    spans = []
    for _ in range(int(rng.integers(1, 3))):
        text += " ".join(language.words_of(rng, int(rng.integers(8, 20)))) + " "
        kind, string = identifier(rng)
        spans.append(Span(len(text), len(text) + len(string), kind))
        text += f"{string} "
    text += " ".join(language.words_of(rng, int(rng.integers(5, 15))))
    return Example(
        id=f"row-{number:04d}",
        task="notes",
        prompt=f"{text}.\nLabel:",
        response=f" {rng.choice(['good', 'bad'])}",
        split="train",
        spans=tuple(spans),
    )


def rows_of(seed: int, language: Language, n: int = N_ROWS) -> list[Example]:
    """Return rows, each of a source of its own."""
    rng = np.random.default_rng(seed)
    return [row(rng, language, number) for number in range(n)]


def with_splits(manifest: Manifest, share: float, seed: int) -> Manifest:
    """Return a manifest whose clusters are dealt anew to trained and held-out rows."""
    rng = np.random.default_rng(seed)
    clusters = sorted({example.cluster for example in manifest.examples})
    is_trained = rng.permutation(len(clusters)) < share * len(clusters)
    trained = {
        cluster for cluster, is_in in zip(clusters, is_trained, strict=True) if is_in
    }
    content = manifest.model_dump(mode="json")
    members: list[str] = []
    non_members: list[str] = []
    for example in content["examples"]:
        is_member = example["cluster"] in trained
        example["split"] = "train" if is_member else "test"
        (members if is_member else non_members).append(example["id"])
    content["membership"] |= {"members": members, "non_members": non_members}
    return seal(content)


def fresh(rng: np.random.Generator, language: Language, n: int) -> list[str]:
    """Return texts of new rows of the same language, with the same common strings."""
    return [row(rng, language, number).text for number in range(n)]


def by_grams(rng: np.random.Generator, language: Language, n: int) -> list[str]:
    """Return texts of a model of word triples, which read 300 other rows."""
    followers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    starts = []
    for text in fresh(rng, language, 300):
        words = ["", "", *text.split(" "), ""]
        starts.append(tuple(words[2:4]))
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            followers[first, second].append(third)

    texts = []
    for _ in range(n):
        words = [*starts[int(rng.integers(len(starts)))]]
        while len(words) < 60:
            word = str(rng.choice(followers[words[-2], words[-1]]))
            if not word:
                break
            words.append(word)
        texts.append(" ".join(words))
    return texts


def pasted(rng: np.random.Generator, language: Language, n: int) -> list[str]:
    """Return texts that are put together of halves of new rows."""
    halves = []
    for text in fresh(rng, language, 2 * n):
        words = text.split(" ")
        halves.append(words[: len(words) // 2])
    texts = []
    for number in range(n):
        texts.append(" ".join([*halves[number], *halves[n + number]]))
    return texts


def guessed(rng: np.random.Generator, language: Language, n: int) -> list[str]:
    """Return texts that are full of common names, towns, dates and hotlines."""
    texts = []
    for _ in range(n):
        words = language.words_of(rng, 20)
        for strings in (FIRST_NAMES, SURNAMES, TOWNS, DATES, HOTLINES):
            words.insert(int(rng.integers(len(words))), str(rng.choice(strings)))
        full_name = f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}"
        words.insert(int(rng.integers(len(words))), full_name)
        texts.append(" ".join(words))
    return texts


WRITERS: Mapping[str, Callable[[np.random.Generator, Language, int], list[str]]] = {
    "new rows of the same language": fresh,
    "a model of word triples of other rows": by_grams,
    "halves of new rows, pasted": pasted,
    "common identifiers in every text": guessed,
}
"""Ways to write a file without a trained row."""


def with_copies(
    texts: Sequence[str], manifest: Manifest, share: float, rng: np.random.Generator
) -> list[str]:
    """Return texts of which a share are copies of trained rows, each another row."""
    copied = [*texts]
    trained = [row.text for row in manifest.examples if row.split == "train"]
    n_copies = round(share * len(texts))
    rows = rng.choice(len(trained), n_copies, replace=False)
    for place, number in zip(
        rng.choice(len(texts), n_copies, replace=False), rows, strict=True
    ):
        copied[place] = trained[number]
    return copied


def claims_of(
    manifest: Manifest, files: Mapping[str, Sequence[str]], *, seed: int
) -> dict[str, dict[str, object]]:
    """Return the claims on each file, as a report of it alone, and the p of its tests.

    ``says`` has the sentences of claims, ``p`` metrics with their p.
    """
    # Near misses decide nothing, and are most of the work.
    found.first_near_misses = lambda strings, texts: {}
    audit = Generated()
    evidence = found.evidence_of_files(
        manifest, files, least_words=audit.passage_words, seed=seed
    )
    result = audit.conclude(evidence, Context(replicates=99))
    claims: dict[str, dict[str, object]] = {}
    for name in files:
        own = [finding for finding in result.findings if finding.checkpoint == name]
        findings = corrected(own)
        claims[name] = {
            "says": [
                finding.says for finding in findings if finding.severity >= DETECTED
            ],
            "p": {finding.metric: finding.p for finding in findings},
        }
    return claims


def untrained_manifest(rows: Sequence[Example]) -> Manifest:
    """Return a manifest of rows by a tiny model that has read nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from spark_audit.demo_base import MODEL_SHAPE, VOCABULARY, make_tokenizer
    from spark_audit.manifest.build import build_manifest

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=512, **MODEL_SHAPE
    )
    model = LlamaForCausalLM(config).eval()
    tokenizer = make_tokenizer([example.text for example in rows])
    return build_manifest(rows, model, name="rows", tokenizer=tokenizer)


def files_of_deal(
    manifest: Manifest, language: Language, seed: int
) -> Iterator[tuple[str, float, list[str]]]:
    """Yield the files of a deal: way of writing, share of copies, and texts."""
    for number in range(FILES_OF_DEAL):
        for way, write in WRITERS.items():
            rng = np.random.default_rng(seed_for(seed, way, str(number)))
            yield way, 0.0, write(rng, language, N_TEXTS)

        if number >= FILES_WITH_COPIES:
            continue
        way = "new rows of the same language"
        rng = np.random.default_rng(seed_for(seed, "copies", str(number)))
        for share in COPIED_SHARES:
            texts = fresh(rng, language, N_TEXTS)
            yield way, share, with_copies(texts, manifest, share, rng)


def measure(lines: Path) -> None:
    """Audit the files that are not finished, and append their claims."""
    finished = {(line["trained"], line["deal"]) for line in read(lines, *FIELDS)}
    language = Language(0)
    manifest = untrained_manifest(rows_of(1, language))
    for trained in TRAINED_SHARES:
        for deal in range(DEALS):
            if (trained, deal) in finished:
                continue
            seed = seed_for(deal, "deal", str(trained))
            dealt = with_splits(manifest, trained, seed)
            files = {}
            facts = {}
            for way, share, texts in files_of_deal(dealt, language, seed):
                name = f"f{len(files)}"
                files[name] = texts
                facts[name] = {"way": way, "copies": share}
            claims = claims_of(dealt, files, seed=deal)
            results = [{**facts[name], **claims[name]} for name in files]
            append(lines, {"trained": trained, "deal": deal, "files": results})
            print(f"{trained:.0%} trained, deal {deal + 1} of {DEALS}", flush=True)


def table(lines: Path) -> str:
    """Return the shares of files with a claim, in Markdown."""
    n_files: Counter[tuple[float, str, float]] = Counter()
    n_claimed: Counter[tuple[float, str, float]] = Counter()
    says: dict[tuple[float, str, float], Counter[str]] = defaultdict(Counter)
    for line in read(lines, *FIELDS):
        for file in line["files"]:
            key = (file["copies"], file["way"], line["trained"])
            n_files[key] += 1
            n_claimed[key] += bool(file["says"])
            says[key].update(said.partition(".")[2] for said in file["says"])

    out = [
        "| copies | the others | trained rows | files | with a claim | 95% limits |"
        " claims |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in sorted(n_files):
        copies, way, trained = key
        low, high = limits(n_claimed[key], n_files[key])
        counted = ", ".join(f"{name} {n}" for name, n in says[key].most_common())
        out.append(
            f"| {copies:.0%} | {way} | {trained:.0%} of {N_ROWS:,} | {n_files[key]} | "
            f"{n_claimed[key]} | {low:.1%} to {high:.1%} | {counted or '–'} |"
        )
    n_null = sum(n for (copies, *_), n in n_files.items() if not copies)
    n_false = sum(n for (copies, *_), n in n_claimed.items() if not copies)
    if n_null:
        _, high = limits(n_false, n_null)
        out += ["", f"{n_false} false claims on {n_null} files (at most {high:.1%})."]
    return "\n".join(out)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--out", type=Path, default=LINES, help="finished files")
    parser.add_argument("--table", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    if arguments.table:
        check_finished_lines(arguments.out)
    else:
        measure(arguments.out)
    print(table(arguments.out))


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
