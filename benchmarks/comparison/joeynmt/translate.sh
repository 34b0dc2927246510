sed "s|^testing:|testing:\n  load_model: \"$1\"|" config.yaml > translate.yaml
python -m joeynmt translate translate.yaml
