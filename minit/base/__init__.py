"""Values, texts and errors for everything above, without system calls. Read `errors.py` first."""
