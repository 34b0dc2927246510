python translate.py "$1"
