onmt_train -config config.yaml
