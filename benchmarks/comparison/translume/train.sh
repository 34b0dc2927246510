translume train config.toml --out model --threads 1
