"""
The messages of the CRI as classes of protobuf: `cri_pb2.py` and its types are made of `cri.proto` by `make proto`.

The services in `minit/cri/` read and write them. Read `cri.proto` first.
"""
