"""Building images: the stage1 image minit itself is, and app images from what a machine has."""
