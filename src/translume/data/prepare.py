"""From files to a tokenized corpus, built once and kept under its digest."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from translume.config.data import CleaningSettings, DataSettings
from translume.data import digest, held_out
from translume.data.building import Builder
from translume.data.corpus import FORMAT, DamagedCacheError, TokenizedCorpus, open_corpus
from translume.data.pairs import Origin, Split, origins, read_pairs
from translume.errors import DataError
from translume.text import Labels, Tokenizer

_ABANDONED_SECONDS = 86_400


def prepare(
    settings: DataSettings,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | Labels,
    folder: Path,
    *,
    split: Split,
    max_positions: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenizedCorpus:
    """The tokenized pairs of a split, from the cache under `folder` or built there now.

    Training pairs pass the cleaning rules; validation pairs only need two sides that fit the model. `max_positions` is
    the model's longest side, end mark included. Without validation files, "valid" is the sample held out of "train";
    both then have the same account. Labels in place of the target's tokenizer make a corpus to classify; its texts may
    be cut as `cleaning.too_long` says, those of validation files too. `progress` is told the number of pairs read so
    far while a corpus is built.
    The cache is named by a digest of the files' bytes, tokenizers and rules, so paths and weights may change. Two
    processes may build it at once: one wins, both read its arrays. Raises DataError for what is wrong with the files.
    """
    valid = origins(settings, "valid")
    held = not valid
    from_training = split == "train" or held
    places = origins(settings, "train") if from_training else valid
    rules = settings.cleaning if from_training else None
    limits = [] if max_positions is None else [max_positions - 1]
    cuts = settings.cleaning.too_long != "drop"
    limit = min(limits + ([settings.cleaning.max_tokens] if rules or cuts else []), default=None)
    values = _ingredients(settings, rules, places, limit, hold_out=held)
    values["tokenizers"] = [source_tokenizer.digest, target_tokenizer.digest]
    values["files"] = [[digest.of_file(file, folder / "files.json") for file in place.files] for place in places]
    home = folder / digest.of_values(values)
    tokenizers = (source_tokenizer, target_tokenizer)
    model_limit = None if max_positions is None else max_positions - 1
    part = "used" if split == "train" or not held else "held_out"
    if part == "held_out":  # weights say how often a file is trained on; validation reads every pair once
        places = tuple(replace(place, weight=1.0) for place in places)
    for _ in range(5):
        try:
            return _checked(open_corpus(home, part, places, tokenizers, model_limit), settings, part)
        except DamagedCacheError:
            for place in places:
                place.check_lengths()
            sample = held_out.choose(read_pairs(settings, "train")) if held else None
            cut = settings.cleaning.too_long
            _build(home, Builder(places, tokenizers, rules, limit, sample, progress, cut=cut))
    raise DataError(f"{home}: the cache is damaged as soon as it is written")


def _ingredients(
    settings: DataSettings,
    rules: CleaningSettings | None,
    places: tuple[Origin, ...],
    limit: int | None,
    *,
    hold_out: bool,
) -> dict[str, object]:
    # Named only where they are used: a corpus that was built before there was a choice is still the same.
    cut = {"too_long": settings.cleaning.too_long} if settings.cleaning.too_long != "drop" else {}
    return {
        **cut,
        "format": FORMAT,
        "rules": rules.model_dump(exclude={"too_long"}) if rules else None,
        "limit": limit,
        "columns": list(settings.columns),
        "kinds": [place.kind for place in places],
        "hold_out": [held_out.SEED, held_out.MOST, held_out.ONE_IN] if hold_out else None,
    }


def _checked(corpus: TokenizedCorpus, settings: DataSettings, part: str) -> TokenizedCorpus:
    """The corpus itself, if it has any pairs. Raises DataError otherwise, with the reasons."""
    if corpus.pairs:
        return corpus
    if part == "held_out":
        raise DataError(
            f"data: none of {corpus.account.read:,} training pairs could be held out for validation; "
            "wanted more pairs, or data.valid_source and data.valid_target"
        )
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in corpus.account.dropped.items())
    raise DataError(f"data: none of {corpus.account.read:,} pairs is left: {reasons or 'all held out'}")


def _build(home: Path, builder: Builder) -> None:
    """Write a cache beside its place, then move it there in one step, unless another process was first."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        _sweep(home.parent)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=home.parent))
        try:
            index = {**builder.write(partial), "format": FORMAT, "digest": home.name}
            with (partial / "index.json").open("w", encoding="utf-8") as file:
                json.dump(index, file, ensure_ascii=True, indent=1)
                file.flush()
                os.fsync(file.fileno())
            partial.chmod(0o755)
            _move(partial, home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{home.parent}: cannot be written: {error.strerror or error}") from None


def _move(partial: Path, home: Path) -> None:
    """Put `partial` at `home`; a whole cache there stays, a damaged one goes."""
    for _ in range(5):
        try:
            os.rename(partial, home)
        except OSError:
            if not home.is_dir():
                raise
            if _is_whole(home):
                return
            aside = Path(tempfile.mkdtemp(prefix=".partial-", dir=home.parent))
            try:
                os.rename(home, aside / "damaged")
            except FileNotFoundError:
                pass
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        else:
            return


def _is_whole(home: Path) -> bool:
    try:
        index = json.loads((home / "index.json").read_text(encoding="utf-8"))
        return all((home / name).stat().st_size == size for name, size in index["sizes"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sweep(folder: Path) -> None:
    """Remove what processes that died a day ago or longer left half written."""
    for path in folder.glob(".partial-*"):
        try:
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue
