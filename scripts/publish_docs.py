"""Put a built documentation site beside those of other versions, and list the versions for its menu.

    python scripts/publish_docs.py build/site build/pages 0.2.0

It replaces build/pages/0.2.0, and writes versions.json (newest first, `main` last) and an index.html that leads to the
newest release. It needs only the standard library.
"""

import json
import re
import shutil
import sys
from pathlib import Path


def order(version: str) -> tuple[int, ...]:
    """Return a key by which releases are sorted; other names come before all of them."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)*", version) else (-1,)


def publish(site: Path, pages: Path, version: str) -> list[str]:
    """Copy `site` to pages/version and return all versions, newest first."""
    if not re.fullmatch(r"[\w.+-]*\w", version):
        sys.exit(f"{version!r}: expected a version such as 0.2.0, or main")
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: has no index.html; run `make docs-site`")
    shutil.rmtree(pages / version, ignore_errors=True)
    shutil.copytree(site, pages / version)
    versions = sorted((path.parent.name for path in pages.glob("*/index.html")), key=lambda name: (order(name), name))
    versions.reverse()
    (pages / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    first = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n'
    (pages / "index.html").write_text(f"<!doctype html>{first}", encoding="utf-8")
    (pages / ".nojekyll").touch()  # Jekyll leaves out folders such as _static
    return versions


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} SITE PAGES VERSION")
    print(*publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
