"""
The control socket: its clients, the requests, answers at once, and answers that wait for an app.

PID 1 serves it, and programs of the host ask by `ask.py`. Read `answers.py` first, then `serve.py`.
"""
