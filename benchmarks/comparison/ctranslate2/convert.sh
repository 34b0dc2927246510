ct2-opennmt-py-converter --model_path "$1" --output_dir model --force
