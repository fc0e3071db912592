"""
The `minit` command: rkt's command line on top of `minit.stage0` and `minit.image`.

`minit/__main__.py` calls it, and the `minit` entrypoint on a machine. Here are the frame of a call, the grammar of
command lines and the tables of commands. The commands are in `commands/`, with options in `flags/` and output in
`text/`.

Read `main.py` first, then `commandgroups.py`.
"""
