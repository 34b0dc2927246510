"""Train and measure the same model with each output head, and compare."""
