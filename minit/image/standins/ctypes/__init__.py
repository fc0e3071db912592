"""The package of a stand-in; ctypes itself is not replaced."""
