"""Prepare a corpus: read, clean and tokenize files once, and cache the result under a digest of its inputs."""

import gc
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from translume.atomic import replace_file
from translume.checksums import sealed, unsealed
from translume.config.data import CleaningSettings, DataSettings
from translume.config.languages import ENGLISH
from translume.config.model import LanguageTags, ModelSettings
from translume.data import held_out
from translume.data.addresses import opened, size_of, state_of
from translume.data.batch import BatchTags
from translume.data.cleaning import KEPT, NO_LIMITS, Account, Limits, Rules, hashes
from translume.data.corpus import FORMAT, DamagedCacheError, Layout, TokenizedCorpus, Writer, open_corpus, separate
from translume.data.denoising import Noise
from translume.data.encoding import CheckedPairs, Cut, Encoder, TextChecker, checking, processes_for
from translume.data.held_out import Sample, chunks, source_hashes
from translume.data.lines import unreadable
from translume.data.pairs import Origin, Pair, Split, origins
from translume.data.partial_cache import Progress, build
from translume.errors import DataError, nearest, refused
from translume.sources import FrameReader, frame_reader
from translume.tasks import Task, find_task
from translume.text import Labels, Tokenizer
from translume.text.specials import UNKNOWN_LANGUAGE

_BLOCK = 1 << 22
DIGESTS = "files.json"
"""The file of digests in a cache folder."""


def values_digest(values: object) -> str:
    """Return 32 hexadecimal digits computed from plain values."""
    return sha256(json.dumps(values, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:32]


def file_digest(path: str, memory: Path) -> str:
    """Return the digest of a file's bytes, in hexadecimal.

    `memory` is a JSON file that caches digests by path, size and times of change, so that a file is hashed once and
    not at every start. A damaged or missing cache is ignored. Raises DataError if the file cannot be read.
    """
    try:
        key = state_of(path)
        known = _read_digests(memory)
        if key in known:
            return known[key]
        digest = blake2b(digest_size=16)
        with opened(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        refuse_changed({path: key})
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    _write_digests(memory, {**_read_digests(memory), key: digest.hexdigest()})
    return digest.hexdigest()


def refuse_changed(states: Mapping[str, str]) -> None:
    """Raise DataError for a file that has changed since its `state_of` was taken."""
    for path, state in states.items():
        if state_of(path) != state:
            raise DataError(f"{path}: was changed while it was read; start again when it is complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that a corpus was read from.

    size: in bytes.  digest: of its bytes, BLAKE2b with 128 bits in hexadecimal, as `b2sum -l 128` prints it.
    pairs: number of its pairs in the corpus; two parallel files have the same.  weight: times that an epoch reads it.
    The digest of a streamed file is "" and its pairs are None.
    """

    split: Split
    path: str
    size: int
    digest: str
    pairs: int | None
    weight: float


def files_of(corpus: TokenizedCorpus, split: Split, folder: Path) -> list[DataFile]:
    """Return the files of a corpus that `prepare` made with the cache folder `folder`."""
    weights = corpus.weights
    return [
        DataFile(
            split=split,
            path=path,
            size=size_of(path),
            digest=file_digest(path, folder / DIGESTS),
            pairs=corpus.first[number + 1] - corpus.first[number],
            weight=weights[number],
        )
        for number, origin in enumerate(corpus.origins)
        for path in origin.files
    ]


def _read_digests(memory: Path) -> dict[str, str]:
    try:
        values, has_digest = unsealed(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if has_digest else {}


def _write_digests(memory: Path, known: dict[str, str]) -> None:
    with refused(memory.parent, "cannot be written"):
        memory.parent.mkdir(parents=True, exist_ok=True)
        replace_file(memory, sealed(known).encode(), synced=False)


SAVE_SECONDS = 10.0
"""Interval at which a build saves its progress."""
_CHUNK = 8192
_FRAMES_CHUNK = 64
"""Pairs in memory at a time, if their sources are texts or frames."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Pairs of one origin that are being checked and encoded.

    read: number of pairs of the origin up to the end of the chunk.  checked: None if their sources are frames.
    """

    place: int
    read: int
    pairs: list[Pair]
    checked: Callable[[], CheckedPairs] | None


class Builder:
    """Writes a tokenized corpus in bounded memory.  hold_out: whether a sample is held out for validation."""

    def __init__(
        self,
        places: tuple[Origin, ...],
        tokenizers: tuple[Tokenizer, Tokenizer | Labels],
        rules: CleaningSettings | None,
        limits: Limits,
        progress: Callable[[int], None] | None,
        task: Task,
        *,
        cut: Cut = "drop",
        hold_out: bool = False,
        look: Callable[[list[Pair]], object] | None = None,
        reader: FrameReader | None = None,
        processes: int | None = None,
    ) -> None:
        self._look, self._reader = look, reader
        self._places, self._processes = places, processes
        if reader and reader.settings.window:  # recordings fill windows, whatever the limits of targets are
            limits = reader.settings.longest(0) - 1, limits[1]
        self._encoder = Encoder(task.name, *tokenizers, cut, limits[0], paths=reader is not None)
        self._checker = TextChecker(self._encoder, rules, hold_out)
        self._rules = Rules(rules, limits, missing_target=task.missing_target, sources=task.reads == "pairs")
        self._sample = Sample() if hold_out else None
        self._rereads = look is not None or (rules is not None and rules.duplicates)
        self._progress = progress
        self._accounts: dict[str, Account] = {}
        self._unit = task.reads
        small = max(map(len, tokenizers)) <= 1 << 16
        short = all(limit is not None and limit < 1 << 16 for limit in limits)
        self._layout = Layout(
            token="uint16" if small else "int32",
            length="uint16" if short else "int32",
            frame_size=reader.settings.size if reader else 0,
            documents=any(place.borders for place in places),
        )

    def write(self, folder: Path) -> dict[str, object]:
        """Write all files except the index, and return the content of the index.

        A folder that an interrupted call left is continued; the files are those of an undisturbed call.
        """
        gc.freeze()  # the objects of torch take a fifth of the time otherwise, collected again after every few chunks
        try:
            return self._write(folder)
        finally:
            gc.unfreeze()

    def _write(self, folder: Path) -> dict[str, object]:
        done = Progress.load(folder)
        part = "all" if self._sample else "used"
        try:
            writer = Writer(folder, part, self._layout, done.part or None)
        except DamagedCacheError:
            done = Progress()
            writer = Writer(folder, part, self._layout)
        if self._sample:
            self._sample = Sample.from_values(done.sample)
        self._accounts = {name: Account.from_dict(each) for name, each in done.accounts.items()}
        try:
            processes = self._processes or processes_for(file for place in self._places for file in place.files)
            with checking(self._checker, processes) as (check, ahead):
                waiting: deque[_Chunk] = deque()
                saved = time.monotonic()
                for chunk in self._chunks(done, check):
                    waiting.append(chunk)
                    while len(waiting) > ahead:
                        last = waiting.popleft()
                        self._append(last, writer)
                        if time.monotonic() - saved >= SAVE_SECONDS:
                            self._saved(last, writer).save(folder)
                            saved = time.monotonic()
                while waiting:
                    self._append(waiting.popleft(), writer)
            while len(writer.first) < len(self._places):
                writer.begin_origin()
            counts = writer.sync()
            parts = {part: writer.close()}
        finally:
            writer.abandon()
        self._accounts = self._accounts or {"": Account(unit=self._unit)}  # all files are empty
        if self._sample:
            parts = separate(folder, self._layout, counts, self._sample.chosen())
            self._count_held_out(cast(list[int], parts["held_out"]["first"]))
        return {
            **{name: value for name, value in asdict(self._layout).items() if value is not False},
            "parts": parts,
            "files": [place.file for place in self._places],
            "account": Account.joined(self._accounts).to_dict(),
            "sizes": {
                path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name.split(".")[0] in parts
            },
        }

    def _count_held_out(self, first: list[int]) -> None:
        """Move pairs from the used to the held-out ones in the accounts.  first: of each origin, and their number."""
        for place, begin, end in zip(self._places, first, first[1:], strict=False):
            if end > begin:
                account = self._accounts[str(place.direction)]
                account.used, account.held_out = account.used - (end - begin), account.held_out + (end - begin)

    def _chunks(self, done: Progress, check: Callable[[list[Pair]], Callable[[], CheckedPairs]]) -> Iterator[_Chunk]:
        """Yield all chunks after those that are done, once their encoding has begun.  check: see `checking`."""
        size = _FRAMES_CHUNK if self._reader else _CHUNK
        for number, place in enumerate(self._places):
            pairs, read = place.read(), 0
            if number <= done.place:
                read = done.pairs
                skipped = islice(pairs, read) if number == done.place else pairs
                if self._rereads:
                    deque(map(self._look_again, chunks(skipped, size)), maxlen=0)
                elif number == done.place:
                    deque(skipped, maxlen=0)
                if number < done.place:
                    continue
            for chunk in chunks(pairs, size):
                read += len(chunk)
                if self._look:
                    self._look(chunk)
                yield _Chunk(number, read, chunk, check(chunk) if self._reader is None else None)

    def _look_again(self, pairs: list[Pair]) -> None:
        """Repeat what must be remembered of pairs that an interrupted call wrote."""
        if self._look:
            self._look(pairs)
        self._rules.of_texts(self._encoder.normalised(pairs))

    def _saved(self, last: _Chunk, writer: Writer) -> Progress:
        """Return the progress after a chunk, once everything that was written is on the disk."""
        accounts = {name: each.to_dict() for name, each in self._accounts.items()}
        sample = self._sample.to_values() if self._sample else {}
        return Progress(place=last.place, pairs=last.read, part=writer.sync(), accounts=accounts, sample=sample)

    def _append(self, chunk: _Chunk, writer: Writer) -> None:
        """Write the pairs of a chunk that are kept. Chunks come in order, so the account is always the same."""
        place = self._places[chunk.place]
        account = self._accounts.setdefault(str(place.direction), Account(unit=self._unit))
        while len(writer.first) <= chunk.place:
            writer.begin_origin()
        account.read += len(chunk.pairs)
        frames: list[NDArray[np.float32]] = []
        source_hash = np.zeros(0, np.uint64)
        if chunk.checked:
            checked = chunk.checked()
            encoded, codes, source_hash = checked.encoded, checked.codes, checked.sources
            texts = np.flatnonzero(codes == KEPT)
            if self._rules.duplicates:
                self._rules.mark_repeated(codes, checked.pairs)
            kept, rows = account.keep(chunk.pairs, codes), np.flatnonzero(codes[texts] == KEPT)
        else:
            codes = self._rules.of_texts(self._encoder.normalised(chunk.pairs))
            if self._sample:
                source_hash = source_hashes(chunk.pairs)
            assert self._reader is not None
            kept, frames = _read_frames(self._reader, account.keep(chunk.pairs, codes), account)
            positions = [self._reader.settings.positions_of(len(each)) for each in frames]
            encoded, rows = self._encoder.encode(kept, positions), np.arange(len(kept))
        if self._sample:
            self._sample.add(source_hash[self._rules.filled(codes)])
            source_hash = source_hash[codes == KEPT] if chunk.checked else source_hashes(kept)
        codes = self._rules.of_lengths(encoded.source_lengths[rows], encoded.target_lengths[rows])
        account.truncated += int((encoded.cut[rows] & (codes == KEPT)).sum())
        account.keep(kept, codes)
        lines = np.fromiter((pair.line for pair in kept), np.int64, len(kept))
        chosen = np.flatnonzero(codes == KEPT)
        if self._sample:
            self._sample.note(source_hash[chosen], writer.pairs + np.arange(len(chosen)))
        own: dict[str, NDArray[Any]] = {"lines": lines[chosen]}
        if self._layout.documents:
            own["document_hashes"] = hashes((kept[index].document for index in chosen.tolist()), len(chosen))
        writer.append(*encoded.sides(rows[chosen]), own, [frames[index] for index in chosen] if frames else [])
        account.used += len(chosen)
        if self._progress:
            self._progress(sum(each.read for each in self._accounts.values()))


def _read_frames(
    reader: FrameReader, pairs: list[Pair], account: Account
) -> tuple[list[Pair], list[NDArray[np.float32]]]:
    """Return the pairs whose sources can be read, and the frames of each. The account counts the others."""
    kept, frames = [], []
    for pair in pairs:
        try:
            frames.append(reader.read(pair.source))
            kept.append(pair)
        except DataError as error:
            account.drop("unreadable", pair._replace(source=str(error)))
    return kept, frames


def prepare(
    settings: DataSettings,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | Labels,
    folder: Path,
    *,
    split: Split,
    max_positions: tuple[int, int] | None = None,
    language_tags: LanguageTags = "none",
    progress: Callable[[int], None] | None = None,
    look: Callable[[list[Pair]], object] | None = None,
    processes: int | None = None,
    note: Callable[[str], object] | None = None,
) -> TokenizedCorpus:
    """Return the tokenized pairs of a split, from the cache under `folder` or built there first.

    Training pairs pass the cleaning rules; validation pairs only need two non-empty sides that fit the model.
    `max_positions` are the maximum lengths of a source and a target, tags and EOS included; `language_tags` is that of
    [model].
    Without validation files, "valid" is the sample held out of "train", and both have the same account. With Labels
    instead of a target tokenizer the corpus is for classification; `cleaning.too_long` then applies to validation texts
    too. Documents have any length, and EOS as their last token; the batches of an epoch cut them into blocks of
    `data.block_length`. `progress` is called with the number of pairs read so far while a corpus is built, and `look`
    with the pairs, before any rule drops them. `processes`: how many tokenize; None: one, or
    if the files are long, one on each core. `note` is called with a line if a damaged cache is rebuilt. The cache's
    name is a digest of the files' bytes, the tokenizers and the rules, so paths and weights may change. One process
    builds it, and others wait for it. If that process is killed, the next call continues its work. Raises DataError if
    a file cannot be used, or changes meanwhile.
    """
    valid = origins(settings, "valid")
    held = not valid
    task = find_task(settings.task)
    from_training = split == "train" or held
    places = origins(settings, "train") if from_training else valid
    rules = settings.cleaning if from_training else None
    documents = task.reads == "documents"
    readable, limits = limits_of(
        settings, max_positions=max_positions, language_tags=language_tags, cleaned=from_training
    )
    values = ingredients(settings, rules, places, limits, hold_out=held)
    values["tokenizers"] = [source_tokenizer.digest, target_tokenizer.digest]
    states = {file: state_of(file) for place in places for file in place.files if os.path.exists(file)}
    values["files"] = [[file_digest(file, folder / DIGESTS) for file in place.files] for place in places]
    reader = frame_reader(settings.source)
    if reader is not None:
        values["source"] = settings.source.model_dump()
        values["sizes"] = [_sizes_digest(place) for place in places]
    home = folder / values_digest(values)
    tokenizers = (source_tokenizer, target_tokenizer)
    noise = Noise.from_settings(settings, *tokenizers)
    part = "used" if split == "train" or not held else "held_out"
    if part == "held_out":  # weights say how often a file is trained on; validation reads every pair once
        places = tuple(replace(place, weight=1.0) for place in places)
    for _ in range(5):
        try:
            corpus = checked(open_corpus(home, part, places, tokenizers, readable, task), part)
            if documents:
                return replace(corpus, block_length=settings.block_length)
            temperature = settings.sampling_temperature if part == "used" and split == "train" else 1.0
            if settings.context.used:
                longest = min([settings.cleaning.max_tokens, *(limit for limit in readable if limit is not None)])
                corpus = replace(corpus, context=settings.context, window=longest)
            tags = tags_of(places, tokenizers, language_tags)
            return replace(corpus, temperature=temperature, tags=tags, noise=noise)
        except DamagedCacheError as error:
            if note and (home / "index.json").exists():
                note(f"{error}; the data were prepared again")
            for place in places:
                place.check_lengths()
            builder = Builder(
                places,
                tokenizers,
                rules,
                limits,
                progress,
                task,
                cut=settings.cleaning.too_long,
                hold_out=held,
                look=look,
                reader=reader,
                processes=processes,
            )

            def write(partial: Path, builder: Builder = builder) -> dict[str, object]:
                index = builder.write(partial)
                refuse_changed(states)  # the digests are those of what was read
                return index

            build(home, write)
    raise DataError(f"{home}: the cache is damaged right after it was written")


def limits_of(
    settings: DataSettings, *, max_positions: tuple[int, int] | None, language_tags: LanguageTags, cleaned: bool
) -> tuple[Limits, Limits]:
    """Return the lengths of the longest source and target that the model can read, and those of sides to keep.

    Lengths are in tokens without EOS and tags.  cleaned: whether the pairs pass the cleaning rules.
    """
    if find_task(settings.task).reads == "documents":
        return NO_LIMITS, NO_LIMITS
    readable = NO_LIMITS
    if max_positions is not None:
        tags = 0 if language_tags == "none" else ModelSettings(language_tags=language_tags).target_tags or 1
        readable = max_positions[0] - tags - 1, max_positions[1] - tags - 1
    longest = [settings.cleaning.max_tokens] if cleaned or settings.cleaning.too_long != "drop" else []
    source, target = (min([*longest, *([] if each is None else [each])], default=None) for each in readable)
    return readable, (source, target)


def _sizes_digest(place: Origin) -> str:
    """Return a digest of the sizes of the files that an origin names, in bytes."""
    sizes = (os.stat(pair.source).st_size if os.path.isfile(pair.source) else -1 for pair in place.read())
    return values_digest(list(sizes))


def tags_of(
    places: tuple[Origin, ...], tokenizers: tuple[Tokenizer, Tokenizer | Labels], where: str
) -> BatchTags | None:
    """Return the tags of each origin's languages. Raises DataError for a language that has none."""
    if where == "none":
        return None
    source, target = tokenizers[0], cast(Tokenizer, tokenizers[1])  # tasks without target text refuse tags

    def ids(tokenizer: Tokenizer, codes: list[str]) -> NDArray[np.int64]:
        for place, code in zip(places, codes, strict=True):
            if code not in tokenizer.languages:
                raise DataError(
                    f"{place.file}: found the language '{code}', which has no tag{nearest(code, tokenizer.languages)}"
                )
        return np.array([[tokenizer.languages[code]] for code in codes], np.int64)

    if where in ("speech", "english_speech"):
        tokens = target.vocabulary.speech_tokens()
        prompts = [tokens.prompt(place.direction.source, place.direction.target) for place in places]
        for place, prompt in zip(places, prompts, strict=True):
            code, written = place.direction.source, place.direction.target
            if UNKNOWN_LANGUAGE in prompt:
                known = tokens.languages
                raise DataError(f"{place.file}: found recordings in '{code}', which has no tag{nearest(code, known)}")
            if tokens.languages and written not in (code, ENGLISH):
                wanted = f"'{code}' or '{ENGLISH}'" if code != ENGLISH else f"'{ENGLISH}'"
                raise DataError(f"{place.file}: data.target_language: found '{written}', expected {wanted}")
        return BatchTags(np.empty((len(places), 0), np.int64), np.array(prompts, np.int64))
    sources, targets = ([getattr(place.direction, side) for place in places] for side in ("source", "target"))
    if where == "source":
        return BatchTags(ids(source, targets), np.empty((len(places), 0), np.int64))
    return BatchTags(ids(source, sources), ids(target, targets))


def ingredients(
    settings: DataSettings,
    rules: CleaningSettings | None,
    places: tuple[Origin, ...],
    limits: Limits,
    *,
    hold_out: bool,
) -> dict[str, object]:
    # Included only if they are not the default, so that caches built before the settings existed stay valid.
    cut = {"too_long": settings.cleaning.too_long} if settings.cleaning.too_long != "drop" else {}
    source = {"source_limit": limits[0]} if limits[0] != limits[1] else {}
    borders = [(place.borders, place.document_column) for place in places]
    return {
        **cut,
        **source,
        "format": FORMAT,
        "rules": rules.model_dump(exclude={"too_long"}) if rules else None,
        "limit": limits[1],
        "columns": list(settings.columns),
        **({"template": settings.template} if settings.template else {}),
        "kinds": [place.kind for place in places],
        **({"borders": borders} if any(each for each, _ in borders) else {}),
        "hold_out": [held_out.SEED, held_out.MAX_PAIRS, held_out.ONE_IN] if hold_out else None,
    }


def checked(corpus: TokenizedCorpus, part: str) -> TokenizedCorpus:
    """Return the corpus. Raises DataError, with the drop counts, if it has no pairs."""
    if corpus.pairs:
        return corpus
    unit = corpus.account.unit
    if part == "held_out":
        files = "data.valid_source and data.valid_target" if unit == "pairs" else "data.valid"
        raise DataError(
            f"data: none of {corpus.account.read:,} training {unit} could be held out for validation; "
            f"expected more {unit}, or {files}"
        )
    if not corpus.account.read:
        raise DataError(f"data: all {len(corpus.origins)} files are empty, expected one sentence a line")
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in corpus.account.dropped.items())
    first = corpus.account.examples.get("unreadable")
    example = f"; {first.file}:{first.line}: {first.source}" if first else ""
    raise DataError(f"data: none of {corpus.account.read:,} {unit} is left: {reasons or 'all held out'}{example}")
