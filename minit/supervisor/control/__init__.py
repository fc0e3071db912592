"""
The control socket: who may ask, what can be asked, what is answered at once, and what has to wait for an app.

PID 1 serves it, and programs of the host ask by `ask.py`. Read `operations.py` first, then `serve.py`.
"""
