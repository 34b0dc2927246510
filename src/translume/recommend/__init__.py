"""The settings that `translume init` proposes, from what the data look like."""
