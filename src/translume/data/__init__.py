"""Read parallel text, clean it, count what was dropped, tokenize it once, and make batches."""

from translume.data.batch import Batch as Batch
from translume.data.buckets import BucketPlan as BucketPlan
from translume.data.buckets import choose_buckets as choose_buckets
from translume.data.cleaning import Account as Account
from translume.data.corpus import TokenizedCorpus as TokenizedCorpus
from translume.data.lines import count_lines as count_lines
from translume.data.lines import read_lines as read_lines
from translume.data.pairs import Pair as Pair
from translume.data.pairs import read_pairs as read_pairs
from translume.data.plan import BatchPlan as BatchPlan
from translume.data.token_cache import DataFile as DataFile
from translume.data.token_cache import files_of as files_of
from translume.data.token_cache import prepare as prepare
