"""Training: `train` trains a model into a folder, yields events, and resumes interrupted runs."""

from translume.training.dry_run import DryRun as DryRun
from translume.training.dry_run import dry_run as dry_run
from translume.training.events import Event as Event
from translume.training.events import Finished as Finished
from translume.training.events import Interrupted as Interrupted
from translume.training.events import Preparing as Preparing
from translume.training.events import Progress as Progress
from translume.training.events import Resumed as Resumed
from translume.training.events import Saved as Saved
from translume.training.events import Started as Started
from translume.training.events import Validated as Validated
from translume.training.events import Warned as Warned
from translume.training.tracking import MLflow as MLflow
from translume.training.tracking import TensorBoard as TensorBoard
from translume.training.tracking import WeightsAndBiases as WeightsAndBiases
from translume.training.train import train as train
