"""`python -m translume` is `translume`."""

from translume.cli import main

if __name__ == "__main__":
    main()
