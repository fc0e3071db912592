"""The package of a stand-in; trio itself is not replaced."""
