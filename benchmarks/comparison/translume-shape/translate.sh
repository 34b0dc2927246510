translume translate "$1" --threads 1
