"""The demo's settings, for a small model that trains in a few minutes on two cores, and its report on tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from translume.config import Config
from translume.errors import DataError

if TYPE_CHECKING:
    from translume.translator import TextHypothesis, Translator

UPDATES = 2000
NAME = "demo.toml"
UNSPACED = ("zh", "ja", "th")


def demo_config(source_language: str, target_language: str, *, updates: int = UPDATES) -> Config:
    """Return the settings for a corpus in the same folder as the settings file."""
    source, target = source_language, target_language
    tables: Mapping[str, Mapping[str, Any]] = {
        "data": {
            "source_language": source,
            "target_language": target,
            "train_source": f"train.{source}",
            "train_target": f"train.{target}",
            "valid_source": f"valid.{source}",
            "valid_target": f"valid.{target}",
        },
        "tokenizer": {"kind": "bpe", "size": 1500, "shared": False},
        "model": {
            "width": 128,
            "feed_forward": 256,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "attention_heads": 4,
            "dropout": 0.0,
            "head": {"kind": "softmax", "tie": "target"},
        },
        "training": {
            "updates": updates,
            "max_tokens": 2048,
            "learning_rate": 3e-3,
            "schedule": "cosine",
            "warmup_updates": min(200, max(1, updates // 5)),
            "label_smoothing": 0.0,
            "validate_every": max(1, updates // 4),
            "save_every": max(1, updates // 4),
            "metric": "nll",
        },
        "evaluation": {
            "metrics": ["exact_match", "bleu", "chrf"],
            "tokenize": "zh" if target in UNSPACED else "13a",
        },
        "decoding": {"strategy": "greedy"},
    }
    return Config.build(tables, place="demo")


def write_recipe(folder: Path, config: Config) -> Path:
    """Write the settings to `demo.toml` in `folder`, unless it holds them already; return its path."""
    path = folder / NAME
    text = config.to_toml()
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBelief:
    """A token of a translation, its probability at its step, and the likeliest other tokens."""

    token: str
    probability: float
    runners_up: tuple[tuple[str, float], ...]


def beliefs(
    translator: "Translator", source: str, hypothesis: "TextHypothesis", *, runners_up: int = 3
) -> tuple[TokenBelief, ...]:
    """Recompute the probability of each token of a sentence's hypothesis, end mark included, by forced decoding."""
    import torch

    checkpoint = translator.checkpoint
    ends, target = checkpoint.source_tokenizer.specials, checkpoint.target_tokenizer
    device = next(checkpoint.model.parameters()).device
    found = []
    with torch.no_grad():
        ids = torch.tensor([[*checkpoint.source_tokenizer.encode(source), ends.eos]], device=device)
        state = checkpoint.model.start(ids, torch.ones_like(ids, dtype=torch.bool))
        prefix = torch.tensor([[target.specials.bos, *hypothesis.ids]], device=device)
        for position, chosen in enumerate(hypothesis.ids):
            belief, state = checkpoint.model.step(prefix[:, : position + 1], state)
            best = belief.topk(runners_up + 1)
            others = zip(best.ids[0].tolist(), best.log_probs[0].exp().tolist(), strict=True)
            rest = [(target.tokens([other])[0], probability) for other, probability in others if other != chosen]
            own = belief.log_prob_of(torch.tensor([[chosen]], device=device))
            found.append(
                TokenBelief(
                    token=target.tokens([chosen])[0],
                    probability=own.exp().item(),
                    runners_up=tuple(rest[:runners_up]),
                )
            )
    return tuple(found)
