"""
The program of a stage1 image that starts with everything imported: an interpreter that has written itself to a file.

The stage1 image is built by it, and so is the program of the command. Read `dump.h` first.

    dump.h          how it works, and what the parts have of each other
    guard.c         looks whether the file of a program is whole, before anything else
    main.c          builds the interpreter, and writes it or goes on from there
    arena.c         its memory, at a fixed address
    filesystem.c    keeps out of it what the file system decides
    objects.c       loads extension modules into that
    write.c         writes the program
    profile.c       finds out what of the memory is written to, and has it lie together
    restore.c       renews what a process has of its own
    crash.c         looks for damage of the file after a fault
    sources.c       runs another program where this one is not current
    immortal.c      objects that are not counted, so that their pages stay those of the file
    sha2.c          what the static library of Debian 13 lacks
    syscalls.c      the module of system calls
    systemcall.h    a system call without the C library, for guard.c and the entrypoints' launcher
    layout.ld       where the linker puts what is saved
    prepare.py      imports, and lets go of what is the building machine's
    features.py     what has to work in a restored interpreter
    noting.py       what its programs write to
    program.py      builds, dumps and checks
    command.py      the same for the command
"""
