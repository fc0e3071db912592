"""The appc manifests: JSON as stage0 and images carry it, read into immutable values."""
