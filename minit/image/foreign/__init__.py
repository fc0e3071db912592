"""
The stage1 image for machines with another processor than the one that builds it.

An image is made by running its interpreter, on a kernel that does what pods need. So a machine of that kind builds it,
which qemu emulates, from packages of Debian for it. Nothing is installed here, and nothing of it runs here.
Read `builder.py` first.

    builder.py      has apt fetch the packages, makes a disk and a kernel of them, boots these, and takes the image
    onmachine.py    the program of that machine
"""
