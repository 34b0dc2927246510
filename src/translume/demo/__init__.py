"""A corpus made offline, and a model small enough to learn it while one waits."""

from translume.demo.beliefs import TokenBelief, beliefs
from translume.demo.corpus import DemoCorpus, make_corpus, phrase_languages
from translume.demo.recipe import UPDATES, demo_config, write_recipe

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
