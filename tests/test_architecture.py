"""The architecture: order of imports, naming, forbidden constructs, declared dependencies, lazy imports."""

import ast
import functools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from translume.errors import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "translume"
FILES = sorted(SOURCE.rglob("*.py"))
Nodes = Sequence[ast.AST]

STEPS = [
    {"errors", "exports", "locks", "tensors", "version"},
    {"atomic", "checksums", "json_values", "lazy", "notebook", "parallel", "parts", "processors"},
    {"config", "device", "kernels"},
    {"tasks"},
    {"belief"},
    {"text", "model", "decoding"},
    {"heads"},
    {"sources"},
    {"data"},
    {"checkpoint"},
    {"engine"},
    {"translator"},
    {"evaluation", "documents"},
    {"inspection", "interchange", "training"},
    {"experiments", "contracts"},
    {"__init__"},
    {"skeletons"},
    {"serving"},
    {"cli"},
    {"__main__"},
]
"""Packages in the order of imports; a package imports only from earlier rows. The public face is `__init__`."""

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}
NEVER_IMPORTED = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
NEVER_CALLED = {"eval", "exec", "torch.load", "torch.save", "pickle.load", "pickle.loads"}
ONLY_IN = {
    "interchange": {
        "transformers",
        "ctranslate2",
        "onnx",
        "onnx_ir",
        "onnxruntime",
        "onnxscript",
        "huggingface_hub",
        "filelock",
    },
    "serving": {"fastapi", "starlette", "uvicorn", "prometheus_client"},
    "documents": {"lxml", "pypdf"},
    "text": {"lingua", "sentencepiece"},
    "inspection": {"captum"},
    "experiments": {"babel"},
    "translator": {"ray"},
    "data": {"fsspec", "pyarrow"},
    "sources": {"PIL", "soundfile"},
}
AT_THE_TOP = {
    "documents": {"documents"},
    "serving": {"serve"},
    "interchange": {"ctranslate2", "export", "onnx"},
    "inspection": {"train"},
    "experiments": {"demo"},
}
"""Extras whose packages a package imports at the top of modules that are only imported where they are needed."""


RUN_ELSEWHERE = {"comet_worker.py": {"comet"}}
"""Modules that the Python of another environment runs, and what they import from there."""


def problems(check: Callable[[Path, Nodes], Iterable[object]], files: Iterable[Path] = FILES) -> list[str]:
    """Return what a check finds in the modules, with their names."""
    return [f"{path.relative_to(SOURCE)}: {found}" for path in files for found in check(path, nodes_of(path))]


def package_name(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def step_of(package: str) -> int:
    for step, packages in enumerate(STEPS):
        if package in packages:
            return step
    raise AssertionError(f"translume.{package} has no step: give it one in {Path(__file__).name}")


@functools.cache
def nodes_of(path: Path) -> Nodes:
    """Return the nodes of a module's syntax tree, its root first."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))))


def package_of(path: Path) -> list[str]:
    return ["translume", *path.relative_to(SOURCE).parts[:-1]]


@functools.cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """Return (line, dotted name) of every import, including those in functions and by `import_module("…")`."""
    return list(imports_in(path, nodes_of(path)))


def imports_in(path: Path, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of the imports among nodes of a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            # `from translume import x` may import the package x or a public name; the longer name decides which.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module") and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a chain of attributes, and an empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


@functools.cache
def imported_package(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "translume":
        return None
    packages = {package for step in STEPS for package in step}
    return parts[1] if len(parts) > 1 and (parts[1] in packages or (SOURCE / parts[1]).is_dir()) else "__init__"


def third_party(imports: Iterable[tuple[int, str]]) -> set[str]:
    roots = {name.split(".")[0] for _, name in imports}
    return roots - set(sys.stdlib_module_names) - {"translume"}


def outside_functions(module: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that run on import, without `if TYPE_CHECKING`."""
    waiting = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def test_imports_follow_the_order_of_packages() -> None:
    def check(path: Path, nodes: Nodes) -> Iterator[str]:
        package = package_name(path)
        late = path.parent.name == "tasks" and path.name not in ("__init__.py", "task.py")
        imports = imports_in(path, outside_functions(nodes[0])) if late else imports_of(path)
        for line, name in imports:  # the methods of a task use any package when they are called
            if (other := imported_package(name)) and other != package and step_of(other) >= step_of(package):
                yield f"line {line}: {package} may not import {other} ({name})"

    assert not problems(check)


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Not even in functions and for types. Modules that import no others, or that no others import, are removed.

    The worker processes of the server still do, and the cohort that they use: they go with the pool.
    """
    modules = {".".join([*package_of(path), path.stem]).removesuffix(".__init__"): path for path in FILES}
    imports: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for _, name in imports_of(path)}
        imports[module] = (names & modules.keys()) - {module}
    while ends := [
        module
        for module, names in imports.items()
        if not names & imports.keys() or not any(module in others for others in imports.values())
    ]:
        for module in ends:
            del imports[module]
    assert imports.keys() == set()


def test_public_functions_name_all_their_parameters() -> None:
    def check(path: Path, nodes: Nodes) -> Iterator[str]:
        for function in nodes:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            public = not function.name.startswith("_") or function.name.startswith("__")
            if (given := function.args.kwarg) and not names_its_keywords(given) and public:
                yield f"{function.name}: takes **{given.arg}"

    assert not problems(check)


def names_its_keywords(parameter: ast.arg) -> bool:
    """Return whether a `**` parameter has named and typed keywords: `Unpack` of a TypedDict, or another function's."""
    annotation = ast.unparse(parameter.annotation) if parameter.annotation else ""
    return annotation.startswith("Unpack[") or annotation == "P.kwargs"


def test_no_module_has_a_vague_name() -> None:
    parts = {part.removesuffix(".py").strip("_") for path in FILES for part in path.relative_to(SOURCE).parts}
    assert not VAGUE & parts


def test_no_pickle_and_no_eval() -> None:
    def check(path: Path, nodes: Nodes) -> Iterator[str]:
        for line, name in imports_of(path):
            if name.split(".")[0] in NEVER_IMPORTED and name != "pickle.UnpicklingError":
                yield f"line {line}: imports {name}"
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func)
            if name in NEVER_CALLED and not (name == "torch.load" and any(map(is_weights_only, node.keywords))):
                yield f"line {node.lineno}: calls {name}"
            yield from (f"line {node.lineno}: allow_pickle" for word in node.keywords if is_true(word, "allow_pickle"))

    assert not problems(check)


def is_weights_only(keyword: ast.keyword) -> bool:
    return keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True


def is_true(keyword: ast.keyword, name: str) -> bool:
    return keyword.arg == name and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)


def test_no_exception_is_caught_blindly() -> None:
    def check(path: Path, nodes: Nodes) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.ExceptHandler) and (node.type is None or dotted(node.type) == "Exception"):
                yield f"line {node.lineno}: except {dotted(node.type) if node.type else ''}"

    assert not problems(check)


TASK_NAMES = {"sequence", "classification", "language_model"}
CLASSES_OF_TASKS = {
    "Checkpoint",
    "ClassifierCheckpoint",
    "Classifier",
    "Served",
    "ServedClassifier",
    "RemoteClassifier",
}
CLASSES_OF_TASKS |= {"ClassifySettings", "Labels"}


def branches_on_task(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yield (line, code) of comparisons with a task's name, and of branches on a class that belongs to one task.

    Assertions do not count as branches.
    """
    asserted = {id(each) for node in nodes if isinstance(node, ast.Assert) for each in ast.walk(node)}
    for node in nodes:
        if id(node) in asserted:
            continue
        if isinstance(node, ast.Compare | ast.MatchValue):
            if {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)} & TASK_NAMES:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.MatchClass):
            if dotted(node.cls) in CLASSES_OF_TASKS:
                yield node.cls.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and dotted(node.func) in ("isinstance", "issubclass"):
            classes = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            if classes & CLASSES_OF_TASKS:
                yield node.lineno, ast.unparse(node)


def test_only_the_tasks_package_branches_on_the_task() -> None:
    def check(path: Path, nodes: Nodes) -> Iterator[object]:
        return branches_on_task(nodes)

    assert not problems(check, [path for path in FILES if package_name(path) != "tasks"])


def test_toolkits_are_imported_only_in_their_packages() -> None:
    def check(path: Path, nodes: Nodes) -> set[str]:
        elsewhere = {name for package, names in ONLY_IN.items() if package != package_name(path) for name in names}
        return elsewhere & third_party(imports_of(path))

    assert not problems(check)


def test_every_imported_package_is_declared() -> None:
    """Those of an extra are imported in the functions that need them. torch is still imported anywhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}

    def check(path: Path, nodes: Nodes) -> Iterator[str]:
        yield from third_party(imports_of(path)) - base - EXTRAS.keys() - RUN_ELSEWHERE.get(path.name, set())
        extras = AT_THE_TOP.get(package_name(path), set())
        for name in third_party(imports_in(path, outside_functions(nodes[0]))) - base - {"torch"}:
            if EXTRAS[name] not in extras:
                yield f"{name}: part of an extra, so imported in the function that needs it"

    assert not problems(check)


def test_settings_need_no_torch() -> None:
    def check(path: Path, nodes: Nodes) -> set[str]:
        return third_party(imports_of(path)) & {"torch"}

    assert not problems(check, [path for path in FILES if package_name(path) in ("errors", "atomic", "config")])


ASK_FOR_HELP = """
from translume.cli import main
sys.argv = ["translume", "--help"]
try:
    main()
except SystemExit as done:
    assert not done.code
"""


def python(code: str, **variables: str) -> str:
    """Run `code` in a fresh Python with only `sys` imported, and return its standard error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("code", ["import translume", ASK_FOR_HELP], ids=["import translume", "translume --help"])
def test_import_and_help_load_no_heavy_package(code: str) -> None:
    loaded = python(f"{code}\nprint(*sys.modules, file=sys.stderr)").split()
    assert not {"torch", "pydantic", "numpy", "tokenizers", "matplotlib", "sacrebleu", "transformers"} & set(loaded)


def test_help_takes_less_than_0_3_seconds_of_cpu_time(tmp_path: Path) -> None:
    code = f"import time\n{ASK_FOR_HELP}\nprint(time.process_time(), file=sys.stderr)"
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}  # as after an installation
    assert min(float(python(code, **compiled)) for _ in range(4)) < 0.3


def test_the_table_of_packages_in_the_docs_matches_the_order_of_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    existing = {package_name(path) for path in FILES} - {"__init__", "__main__"}
    assert sorted(table) == sorted(existing)
    assert [step_of(name) for name in table] == sorted(step_of(name) for name in table)
