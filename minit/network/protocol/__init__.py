"""
Requests to a plugin of the CNI and its answers: parameters, results, error codes (CNI specification, sections 2 and 5).

It only reads and writes: `minit/network/plugins/` asks, and `minit/network/builtin/` answers. Read `request.py` first,
then `result.py`.
"""
