"""
Images made of other ones: files are copied into the root of an app, commands run in it, and the root becomes an image.

`image build --from` calls it. Read `imagebuilder.py` first.
"""
