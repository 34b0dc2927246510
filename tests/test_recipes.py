"""The files in recipes/."""

from pathlib import Path

import pytest

from translume.config import Config

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_has_valid_settings(recipe: Path) -> None:
    Config.read(recipe)
