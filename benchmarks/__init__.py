"""Measurements of minit beside its peers, in the same run on the same machine; what counts is the ratios."""
