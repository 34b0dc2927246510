"""The corpus, the settings and the token report of `translume demo`."""

from translume.demo.corpus import DemoCorpus, make_corpus, phrase_languages
from translume.demo.run import UPDATES, TokenBelief, beliefs, demo_config, write_recipe

__all__ = [
    "UPDATES",
    "DemoCorpus",
    "TokenBelief",
    "beliefs",
    "demo_config",
    "make_corpus",
    "phrase_languages",
    "write_recipe",
]
