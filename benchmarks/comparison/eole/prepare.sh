eole build_vocab -config config.yaml -n_sample -1
