"""Hatch's build hook: the wheel has the pages of docs/, and the kernels of every instruction set and in WebAssembly.

Without a C compiler, or with TRANSLUME_NATIVE=0, the wheel has no kernels and is for every platform. An editable
installation compiles them at first use.
"""

import importlib.util
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src", "translume", "kernels")


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds libraries of kernels to the wheel and names its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """version: "standard" or "editable".  build_data: what the wheel contains, extended here."""
        self.folder = Path(tempfile.mkdtemp(prefix="translume-kernels-"))
        if version == "editable":
            return
        pages = Path(self.root, "docs").glob("*.md")  # what `translume docs` shows
        build_data["force_include"].update({str(page): f"translume/docs/{page.name}" for page in pages})
        if os.environ.get("TRANSLUME_NATIVE") == "0":
            return
        sources = Path(self.root, KERNELS)
        building = load_building(sources)
        try:
            building.compile_web(sources, self.folder / building.WEB)
            inside = f"translume/kernels/{building.LIBRARIES}/{building.WEB}"
            build_data["force_include"][str(self.folder / building.WEB)] = inside
        except building.CompilerError as error:
            self.app.display_warning(f"the wheel has no kernels in WebAssembly: {error}")
        command = building.compiler()
        if command is None:
            self.app.display_warning("no C compiler was found (cc, gcc, clang): the wheel has no kernels")
            return
        for instructions in building.INSTRUCTION_SETS.get(building.machine(), ()):
            library = self.folder / instructions.library
            try:
                building.compile_library(command, sources, instructions, library)
            except building.CompilerError as error:
                self.app.display_warning(f"the wheel has no kernels for {instructions.name}: {error}")
                continue
            build_data["force_include"][str(library)] = f"translume/kernels/{building.LIBRARIES}/{library.name}"
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled libraries, which are in the wheel now."""
        shutil.rmtree(self.folder, ignore_errors=True)


def load_building(folder: Path) -> ModuleType:
    """Load building.py of the kernels by its path: Translume is not installed yet."""
    spec = importlib.util.spec_from_file_location("building", folder / "building.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
