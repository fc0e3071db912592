"""
A translator of Containerfiles into images: the text is parsed, the stages are planned, and each step is carried out.

A Containerfile and its context come from strangers. Everything that is not supported is refused by file and line before
a build begins. Read `plan.py` first.
"""
