"""The card of a model: what it is, what it was made from, how good it is, who may use it."""

from pathlib import Path

from translume.checkpoint import Card, write_card
from translume.checkpoint.card import licence_of
from translume.config import Config

CONFIG = Config().change(
    "data.source_language=en",
    "data.target_language=de",
    "data.train_source=/far/away/train.en",
    "training.updates=8000",
)


def test_a_card_names_data_recipe_scores_and_licence(tmp_path: Path) -> None:
    folder = tmp_path / "en-de"
    folder.mkdir()
    card = Card(parameters=1234567, data="read 29,000 = used 28,990 + dropped 10", scores=["BLEU|tok:none = 41.02"])
    write_card(folder, CONFIG, card)
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nlicense: unknown\nlanguage:\n- en\n- de\nlibrary_name: translume\n")
    for part in (
        "# en-de\n",
        "en to de",
        "`train.en`",
        "read 29,000 = used 28,990 + dropped 10",
        "- 1,234,567 parameters\n",
        "- 8,000 updates of 4,096 tokens",
        "BLEU|tok:none = 41.02",
    ):
        assert part in text
    assert "/far/away" not in text, "where files lay is nobody's business"


def test_a_licence_that_someone_wrote_is_kept(tmp_path: Path) -> None:
    write_card(tmp_path, CONFIG, Card())
    assert licence_of(tmp_path) == "unknown"
    path = tmp_path / "README.md"
    path.write_text(path.read_text().replace("license: unknown", "license:  cc-by-4.0 "))
    write_card(tmp_path, CONFIG, Card())
    assert licence_of(tmp_path) == "cc-by-4.0"
    write_card(tmp_path, CONFIG, Card(licence="mit"))
    assert licence_of(tmp_path) == "mit"


def test_a_folder_without_a_card_has_no_known_licence(tmp_path: Path) -> None:
    assert licence_of(tmp_path) == "unknown"
    (tmp_path / "README.md").write_text("no front matter\nlicense: mit\n")
    assert licence_of(tmp_path) == "unknown"
