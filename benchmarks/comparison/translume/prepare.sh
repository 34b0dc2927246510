translume init data/train.en data/train.de > config.toml
