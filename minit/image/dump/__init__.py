"""
The program of a stage1 image that starts with everything imported: an interpreter that has written itself to a file.

The stage1 image and the program of the command are dumps. Read `dump.h` first.

    dump.h          the way of working, and the interfaces of the parts
    guard.c         checks first of all whether the file of a program is whole
    main.c          builds the interpreter, and writes a dump or goes on from there
    arena.c         the memory of the dump, at a fixed address
    objects.c       loads extension modules into the memory
    plain.c         hides the differences of machines and moments from the dump
    write.c         writes the program
    profile.c       finds written memory, and puts the blocks together
    restore.c       renews the state that belongs to a process
    crash.c         checks the file for damage after a fault
    sources.c       runs another program where the dump is not current
    immortal.c      objects that are not counted, so that pages stay shared with the file
    sha2.c          functions that the static library of Debian 13 lacks
    syscalls.c      the module of system calls
    systemcall.h    a system call without the C library, for guard.c and the entrypoints' launcher
    layout.ld       the addresses of saved memory, for the linker
    prepare.py      imports modules, and drops the state of the building machine
    features.py     tries the features of a restored interpreter
    noting.py       the memory that programs write to
    program.py      builds, dumps and checks
    command.py      the same for the command
"""
