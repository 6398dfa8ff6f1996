"""`python -m undergrowth` is the same as `undergrowth`."""

from undergrowth.cli import main

if __name__ == "__main__":
    main()
