"""The loss of CTC at the encoder."""

from collections.abc import Callable
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sources.conftest import frames_of

from translume.config import Config, DecodingSettings
from translume.engine.fronts import Front
from translume.engine.layers import Layers
from translume.errors import SettingsError
from translume.model import LossOptions
from translume.model.ctc import Ctc
from translume.model.frames import FrameEmbedding
from translume.model.transformer import Encoder
from translume.training import train
from translume.translator import Translation, load
from translume.translator.cohort import Cohort
from translume.translator.planning import Line

BLANK = 1


def probability(log_probs: torch.Tensor, target: tuple[int, ...]) -> float:
    """Return the sum over all paths whose tokens, without repetitions and then without blanks, are the target."""
    total = 0.0
    for path in product(range(log_probs.size(1)), repeat=len(log_probs)):
        if tuple(each for each, _ in groupby(path) if each != BLANK) == target:
            total += float(log_probs[torch.arange(len(path)), list(path)].sum().exp())
    return total


def test_the_loss_is_the_sum_over_all_alignments() -> None:
    torch.manual_seed(3)
    ctc = Ctc(width=5, vocabulary=4)
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    memory = torch.randn(2, 4, 5)
    target = torch.tensor([[BLANK, 2, 2], [BLANK, 3, 0]])
    found = ctc.loss(memory, mask, target, torch.tensor([[True, True, True], [True, True, False]]))
    log_probs = ctc.log_probs(memory).detach()
    expected = [probability(log_probs[0], (2, 2)), probability(log_probs[1, :3], (3,))]
    assert found.item() == pytest.approx(-sum(torch.tensor(expected).log().tolist()), rel=1e-5)


def test_a_target_that_does_not_fit_its_source_adds_nothing() -> None:
    mask, target = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[BLANK, 2, 2, 3]])
    assert Ctc(5, 4).loss(torch.randn(1, 2, 5), mask, target, target > 0).item() == 0


def test_ctc_and_classes_are_refused(make: Callable[..., Config]) -> None:
    with pytest.raises(SettingsError, match=r"data.source: found 'features', must be 'text' for a classifier"):
        make(data={"task": "classification"}, model={"head": {"kind": "classify"}})
    with pytest.raises(SettingsError, match=r"training.ctc_weight: found 0.3, must be 0 for text to text with data"):
        make(data={"source": "text"}, training={"ctc_weight": 0.3})


def test_a_search_ranks_by_attention_and_ctc_and_encodes_its_source_once(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(
        train(
            make(
                model={"width": 16, "attention_heads": 1, "feed_forward": 32},
                training={"updates": 9, "ctc_weight": 0.25},
            ),
            tmp_path / "model",
        )
    )
    plain = load(tmp_path / "model", engine="plain")
    fast = load(tmp_path / "model", engine="fast")
    source = frames_of("abc", 5)
    model = plain.checkpoint.model
    assert model.ctc is not None
    assert model.ctc.output.weight.shape == (len(plain.checkpoint.target_tokenizer), 16)
    frames = torch.from_numpy(source)[None]
    memory, mask = model.encoder.front(frames, torch.ones(frames.shape[:2], dtype=torch.bool))
    log_probs = model.ctc.log_probs(model.encoder(memory, mask)).detach()[0]
    bos, eos = (getattr(plain.checkpoint.target_tokenizer.specials, name) for name in ("bos", "eos"))
    encoded = []
    for kind, name in ((FrameEmbedding, "front"), (Encoder, "packed"), (Front, "embedded"), (Layers, "encode")):
        original = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, own=original: (encoded.append(own.__name__), own(*given))[1])
    settings: dict[str, Any] = {"beam": 3, "nbest": 2, "ctc_weight": 0.75}
    for translator, calls in ((plain, ["front", "packed"]), (fast, ["embedded", "encode"])):
        encoded.clear()
        found = translator.translate(source, **settings).hypotheses
        assert encoded == calls
        assert len(found) == 2
        assert found[0].score >= found[1].score
        for each in found:
            labels = torch.tensor([id_ for id_ in each.ids if id_ != eos])
            loss = torch.nn.functional.ctc_loss(
                log_probs, labels, torch.tensor(len(log_probs)), torch.tensor(len(labels)), blank=bos, reduction="sum"
            )
            assert each.log_prob == pytest.approx(plain.score(source, each.text).log_prob, abs=1e-4)
            assert each.score == pytest.approx(0.25 * each.log_prob + 0.75 * max(-loss.item(), -1e4), abs=1e-3)
        cohort = Cohort(translator, translator.config.decoding.model_copy(update=settings))
        cohort.enter({0: Line(number=0, text="", given=source)}, {})
        queued = cohort.run()[0]
        assert isinstance(queued, Translation)
        assert [(each.ids, each.score) for each in queued.hypotheses] == [(each.ids, each.score) for each in found]
        alone = translator.translate(source, beam=1, nbest=1, ctc_weight=0.75, strategy="beam").hypotheses[0]
        blind = translator.translate(source, beam=1, nbest=1, ctc_weight=0.0, strategy="beam").hypotheses[0]
        assert alone.score != pytest.approx(blind.score, abs=1e-3)
    for count in (1, 3):  # samples are drawn from the decoder alone
        drawn = [
            plain.translate(
                source,
                settings=DecodingSettings(strategy="sampling", samples=count, nbest=count, seed=5, ctc_weight=weight),
            )
            for weight in (0.0, 0.75)
        ]
        assert drawn[0] == drawn[1]
    target = torch.tensor([[bos, *plain.checkpoint.target_tokenizer.encode("abc")]])
    labels = torch.cat([target[:, 1:], torch.tensor([[eos]])], 1)
    given = (frames, torch.ones(frames.shape[:2], dtype=torch.bool), target, labels, torch.ones_like(target).bool())
    once, twice = (model.loss(*given, LossOptions(ctc_weight=0.5, r_drop=weight)).objective for weight in (0.0, 1.0))
    torch.testing.assert_close(once, twice)  # without dropout, both passes are equal
