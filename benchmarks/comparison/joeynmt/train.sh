python -m joeynmt train config.yaml --skip-test
