"""The `minit` command: rkt's command line on top of `minit.stage0` and `minit.image`."""
