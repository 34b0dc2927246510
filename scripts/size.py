"""Count the lines of code: those of a program that are neither blank, nor comments, nor docstrings.

    python scripts/size.py [FOLDER ...] [--modules]

prints them for each package of src/translume and in all, and the lines of the tests. FOLDER: other folders of Python
files instead. --modules: for each module too.
"""

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(text: str) -> int:
    """Return the number of lines of a Python program that hold code. A line of a multi-line string holds code."""
    found = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - set(docstring_lines(ast.parse(text))))


def docstring_lines(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of docstrings: strings that are statements, also below an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="folders of Python files")
    parser.add_argument("--modules", action="store_true", help="print each module")
    options = parser.parse_args()
    source = ROOT / "src" / "translume"
    folders = options.folders or [source, *sorted(each for each in source.iterdir() if (each / "__init__.py").exists())]
    total = modules = 0
    for folder in folders:
        direct = folder == source
        files = sorted(folder.glob("*.py") if direct else folder.rglob("*.py"))
        sizes = {path: lines_of_code(path.read_text("utf-8")) for path in files}
        total, modules = total + sum(sizes.values()), modules + len(files)
        print(f"{sum(sizes.values()):8,} {len(files):5} {'modules of translume' if direct else folder.name}")
        for path, size in sizes.items() if options.modules else ():
            print(f"{size:8,}       {path.relative_to(folder)}")
    print(f"{total:8,} {modules:5} in all")
    if not options.folders:
        tests = sum(len(path.read_text("utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
        print(f"{tests:8,} lines of tests")


if __name__ == "__main__":
    main()
