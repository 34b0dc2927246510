cat > input.txt
eole predict -model_path "$1" -src input.txt -output output.txt -beam_size 5 -batch_size 64
cat output.txt
