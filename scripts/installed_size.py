"""Print what each package weighs in a fresh environment with the base, or with an extra.

    python scripts/installed_size.py [EXTRA ...]

installs this checkout from the package index into a temporary environment: the base, then the base with each extra
(default: serve and documents). A package's megabytes (10^6 bytes) are those of its files, with Python's compiled ones.
"""

import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL = 1e6
"""Packages with fewer bytes are one line together."""


def pip(program: str, *words: str) -> None:
    """Run pip of an environment."""
    subprocess.run([program, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


def installed(wheel: Path, extra: str) -> dict[str, int]:
    """Return the bytes of each package in a new environment with the base and an extra, if it is not empty."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip(f"{folder}/bin/python", "install", f"{wheel}[{extra}]" if extra else str(wheel))
        site = next(Path(folder).glob("lib/python*/site-packages"))
        found = {each.name: size_of(each) for each in distributions(path=[str(site)])}
    return {name: size for name, size in found.items() if name not in ("pip", "setuptools")}


def size_of(package: Distribution) -> int:
    """Return the bytes of a package's files."""
    paths = (Path(str(package.locate_file(each))) for each in package.files or ())
    return sum(path.stat().st_size for path in paths if path.exists())


def print_table(title: str, sizes: dict[str, int]) -> None:
    """Print packages and megabytes, largest first, and their sum."""
    print(f"{title}: {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} packages")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size >= SMALL:
            print(f"  {name:24} {size / 1e6:6.1f}")
    small = [size for size in sizes.values() if size < SMALL]
    print(f"  {f'{len(small)} smaller ones':24} {sum(small) / 1e6:6.1f}\n", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT))
        wheel = next(Path(folder).glob("*.whl"))
        base = installed(wheel, "")
        print_table("base", base)
        for extra in sys.argv[1:] or ["serve", "documents"]:
            found = installed(wheel, extra)
            print_table(f"added by [{extra}]", {name: found[name] for name in found.keys() - base.keys()})


if __name__ == "__main__":
    main()
