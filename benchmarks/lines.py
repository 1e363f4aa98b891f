"""Lines of code of both packages: without docstrings, comments and blank lines.

``python benchmarks/lines.py [FOLDER...]`` counts with ``tokenize`` and ``ast``, and
names the longest functions and files.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from command_line import benchmark_parser, run_benchmark

ROOT = Path(__file__).parents[1]
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def strings_alone(tree: ast.Module) -> set[int]:
    """Lines of strings that are statements: docstrings of whatever they stand under."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(source: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return lines - strings_alone(ast.parse(source))


def functions(source: str) -> list[tuple[int, str]]:
    code = code_lines(source)
    return [
        (len(code & set(range(node.lineno, (node.end_lineno or 0) + 1))), node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    ]


def main() -> None:
    """Print the counts."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="FOLDER",
        help="folders of the repository; default: both packages",
    )
    options = parser.parse_args()
    folders = options.folders or ["spark_audit", "spark_train"]
    for folder in folders:
        if not (ROOT / folder).is_dir():
            parser.error(f"{folder}: there is no such folder in {ROOT.name}")

    total, files, longest = 0, [], []
    for folder in folders:
        lines = 0
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            count = len(code_lines(source))
            lines += count
            name = str(path.relative_to(ROOT))
            files.append((len(source.splitlines()), name))
            longest += [(n, f"{name}: {who}") for n, who in functions(source)]
        print(f"{lines:7,} {folder}")
        total += lines
    print(f"{total:7,} in all")
    for title, rows in (("longest files", files), ("longest functions", longest)):
        print(f"\n{title}")
        for count, name in sorted(rows, reverse=True)[:12]:
            print(f"{count:7,} {name}")


if __name__ == "__main__":
    run_benchmark(main)
