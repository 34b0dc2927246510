"""Read parallel text, clean it, count what was dropped, tokenize it once, and make batches."""

from translume.data.batch import Batch
from translume.data.buckets import BucketPlan, choose_buckets
from translume.data.cleaning import Account
from translume.data.corpus import TokenizedCorpus
from translume.data.lines import count_lines, read_lines
from translume.data.pairs import Pair, read_pairs
from translume.data.plan import BatchPlan
from translume.data.token_cache import DataFile, files_of, prepare

__all__ = [
    "Account",
    "Batch",
    "BatchPlan",
    "BucketPlan",
    "DataFile",
    "Pair",
    "TokenizedCorpus",
    "choose_buckets",
    "count_lines",
    "files_of",
    "prepare",
    "read_lines",
    "read_pairs",
]
