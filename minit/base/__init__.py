"""Values, texts and errors that everything above uses; no system call is made here. Read `errors.py` first."""
