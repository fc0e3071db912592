"""The package of a stand-in; urllib itself is not replaced."""
