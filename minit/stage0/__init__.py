"""The host side of rkt's contract: image store, tree store, and the life-cycle of pod directories."""
