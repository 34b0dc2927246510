eole train -config config.yaml
